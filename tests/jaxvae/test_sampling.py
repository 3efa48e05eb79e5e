"""Sampling: PyTorch's noise gives PyTorch's sample, and keys give what they always give."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxvae import DiagonalGaussian

LIMIT = 2e-5


@pytest.fixture
def posterior(bridge):
    return DiagonalGaussian(jnp.asarray(bridge.normal(3, 2, 4, 5, 6)))


def test_the_noise_of_pytorch_gives_its_reconstruction(bridge, objective):
    x = bridge.normal(*objective.video)
    theirs = objective.theirs
    expected = theirs(
        bridge.first(x), sample_posterior=True, generator=torch.Generator().manual_seed(5)
    ).sample
    shape = theirs.encode(bridge.first(x)).latent_dist.mean.shape
    noise = bridge.last(torch.randn(shape, generator=torch.Generator().manual_seed(5)))
    ours = objective.ours(x, sample_posterior=True, noise=noise)
    assert bridge.error(ours, bridge.last(expected)) < LIMIT
    # Nothing is drawn where no sample was asked for, as in the source.
    mode = objective.ours(x)
    assert bridge.error(mode, ours) > 1e-2
    assert np.array_equal(objective.ours(x, noise=noise, key=jax.random.key(0)), mode)


def test_a_key_gives_the_same_sample_again_and_split_keys_give_others(bridge, objective):
    x = bridge.normal(*objective.video)
    one, two = jax.random.split(jax.random.key(0))
    first, again, other = (
        objective.ours(x, sample_posterior=True, key=key) for key in (one, one, two)
    )
    assert np.array_equal(first, again)
    assert bridge.error(other, first) > 1e-2


def test_the_call_without_a_source_of_randomness_says_what_to_give(bridge, objective):
    x = bridge.normal(*objective.video)
    message = r"expected exactly one of `key` and `noise`, found neither; give key=jax\.random\.key"
    with pytest.raises(ValueError, match=message):
        objective.ours(x, sample_posterior=True)
    with pytest.raises(ValueError, match="found both"):
        objective.ours(
            x, sample_posterior=True, key=jax.random.key(0), noise=np.zeros(objective.latent)
        )


def test_a_key_for_each_sample_is_a_generator_for_each(bridge):
    """A sample depends on its own key alone, as with a list of generators in PyTorch."""
    parameters = bridge.normal(3, 2, 4, 5, 6)
    whole = DiagonalGaussian(jnp.asarray(parameters))
    keys = jax.random.split(jax.random.key(1), 3)
    drawn = whole.sample(keys)
    chex.assert_shape(drawn, (3, 2, 4, 5, 3))
    alone = DiagonalGaussian(jnp.asarray(parameters[1:2]))
    assert np.array_equal(alone.sample(keys[1]), drawn[1:2])
    assert np.array_equal(alone.sample(keys[1:2]), drawn[1:2])
    order = np.array([2, 0, 1])
    other = DiagonalGaussian(jnp.asarray(parameters[order])).sample(keys[order])
    assert np.array_equal(other, drawn[order])
    assert bridge.error(jax.jit(DiagonalGaussian.sample)(whole, keys), drawn) < 1e-6


def test_keys_of_the_old_style(posterior):
    old, new = jax.random.PRNGKey(7), jax.random.key(7)
    assert np.array_equal(posterior.sample(old), posterior.sample(new))
    old, new = jax.random.split(old, 3), jax.random.split(new, 3)
    assert np.array_equal(posterior.sample(old), posterior.sample(new))


def test_another_number_of_keys(posterior):
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(
        ValueError, match=r"one for each of the 3 samples, found keys of shape \(2,\)"
    ):
        posterior.sample(keys)


def test_samples_have_the_moments_of_the_posterior(bridge):
    parameters = np.repeat(bridge.normal(1, 1, 1, 2, 6), 4000, axis=0)
    posterior = DiagonalGaussian(jnp.asarray(parameters))
    for key in (jax.random.key(0), jax.random.split(jax.random.key(0), 4000)):
        drawn = np.asarray(posterior.sample(key))
        scale = np.asarray(posterior.std[0])
        np.testing.assert_array_less(np.abs(drawn.mean(0) - posterior.mean[0]) / scale, 0.08)
        np.testing.assert_allclose(drawn.std(0) / scale, 1, atol=0.06)


def test_the_dtype_is_that_of_the_parameters(bridge):
    parameters = jnp.asarray(bridge.normal(1, 2, 4, 5, 6), jnp.bfloat16)
    drawn = DiagonalGaussian(parameters).sample(jax.random.key(0))
    chex.assert_type(drawn, jnp.bfloat16)
    noise = np.ones(drawn.shape, np.float32)
    chex.assert_type(DiagonalGaussian(parameters).sample(noise=noise), jnp.bfloat16)
