import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from jaxvae import DiagonalGaussian


@pytest.fixture
def sides(bridge):
    # Spread 15, so that the log variance meets both ends of its clamp.
    parameters = 15 * bridge.normal(2, 3, 4, 5, 6)
    return DiagonalGaussian(jnp.asarray(parameters)), DiagonalGaussianDistribution(
        bridge.first(parameters)
    )


def test_moments(bridge, sides):
    ours, theirs = sides
    for name in ("mean", "logvar", "std", "var"):
        assert bridge.error(getattr(ours, name), bridge.last(getattr(theirs, name))) < 1e-6, name
    assert np.array_equal(ours.mode(), bridge.last(theirs.mode()))
    assert float(ours.logvar.min()) == -30
    assert float(ours.logvar.max()) == 20


def test_sample_with_the_reference_noise(bridge, sides):
    ours, theirs = sides
    expected = bridge.last(theirs.sample(generator=torch.Generator().manual_seed(3)))
    noise = torch.randn(theirs.mean.shape, generator=torch.Generator().manual_seed(3))
    assert bridge.error(ours.sample(noise=bridge.last(noise)), expected) < 1e-6


def test_sample_from_a_key(sides):
    ours, _ = sides
    key = jax.random.key(0)
    noise = jax.random.normal(key, ours.mean.shape)
    assert np.array_equal(ours.sample(key), ours.sample(noise=noise))
    assert not np.array_equal(ours.sample(key), ours.sample(jax.random.key(1)))


def test_sample_wants_exactly_one_source(sides):
    ours, _ = sides
    with pytest.raises(ValueError, match="exactly one"):
        ours.sample()
    with pytest.raises(ValueError, match="exactly one"):
        ours.sample(jax.random.key(0), noise=ours.mean)
    with pytest.raises(ValueError, match="noise of shape"):
        ours.sample(noise=ours.mean[:1])


def test_kl_and_nll_keep_the_width(bridge):
    parameters = bridge.normal(2, 3, 4, 5, 6)
    other = bridge.normal(2, 3, 4, 5, 6, seed=1)
    x = bridge.normal(2, 3, 4, 5, 3, seed=2)
    ours = DiagonalGaussian(jnp.asarray(parameters))
    theirs = DiagonalGaussianDistribution(bridge.first(parameters))
    other_ours = DiagonalGaussian(jnp.asarray(other))
    other_theirs = DiagonalGaussianDistribution(bridge.first(other))
    assert ours.kl().shape == (2, 5)
    assert bridge.error(ours.kl(), theirs.kl().numpy()) < 1e-6
    assert bridge.error(ours.kl(other_ours), theirs.kl(other_theirs).numpy()) < 1e-6
    assert bridge.error(ours.nll(jnp.asarray(x)), theirs.nll(bridge.first(x)).numpy()) < 1e-6


def test_deterministic(bridge):
    parameters = bridge.normal(1, 2, 3, 3, 4)
    ours = DiagonalGaussian(jnp.asarray(parameters), deterministic=True)
    theirs = DiagonalGaussianDistribution(bridge.first(parameters), deterministic=True)
    for name in ("std", "var"):
        assert np.array_equal(getattr(ours, name), bridge.last(getattr(theirs, name)))
    assert np.array_equal(ours.kl(), theirs.kl().numpy())
    assert np.array_equal(ours.nll(ours.mean), theirs.nll(theirs.mean).numpy())
    assert np.array_equal(ours.sample(jax.random.key(0)), ours.mean)


def test_is_a_pytree(sides):
    ours, _ = sides
    doubled = jax.jit(lambda p: jax.tree.map(lambda x: 2 * x, p))(ours)
    assert np.array_equal(doubled.parameters, 2 * ours.parameters)
    assert len(jax.tree.leaves(ours)) == 1


def test_bfloat16_is_rounded_as_pytorch_rounds(bridge):
    """Inside one program, where XLA would keep excess precision between the operations."""
    given = 2 * bridge.normal(2, 3, 4, 5, 6)
    noise, x = bridge.normal(2, 3, 4, 5, 3, seed=1), bridge.normal(2, 3, 4, 5, 3, seed=2)
    theirs = DiagonalGaussianDistribution(bridge.first(given).bfloat16())
    noise_there, x_there = (bridge.first(array).bfloat16() for array in (noise, x))
    expected = {
        "sample": bridge.last((theirs.mean + theirs.std * noise_there).float()),
        "kl": theirs.kl().float().numpy(),
        "nll": theirs.nll(x_there).float().numpy(),
    }

    @jax.jit
    def run(parameters, noise, x):
        posterior = DiagonalGaussian(parameters)
        return {
            "sample": posterior.sample(noise=noise),
            "kl": posterior.kl(),
            "nll": posterior.nll(x),
        }

    found = run(*(jnp.asarray(array, jnp.bfloat16) for array in (given, noise, x)))
    assert all(array.dtype == jnp.bfloat16 for array in found.values())
    assert np.array_equal(found["sample"].astype(np.float32), expected["sample"])
    for name in ("kl", "nll"):  # sums of 36 terms, in another order: one unit in the last place
        np.testing.assert_allclose(found[name].astype(np.float32), expected[name], rtol=2**-7)
