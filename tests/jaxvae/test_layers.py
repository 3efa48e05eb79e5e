import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae.layers import activations, norms
from jaxvae.models.cogvideox import spatial_norm

EXACT = 2e-6  # relative to the largest value: a few roundings of float32


@pytest.mark.parametrize("mean", [0, 30, 100])
@pytest.mark.parametrize("shape", [(2, 3, 16, 16, 16), (2, 9, 9, 16), (2, 50, 16), (3, 16)])
def test_group_norm_is_within_four_roundings_of_float64(bridge, mean, shape):
    """A mean that is rounded to float32 costs about `mean` of them."""
    ours, theirs = bridge.load(
        lambda: norms.GroupNorm(4, 16, 1e-6, dtype=jnp.float32), torch.nn.GroupNorm(4, 16, 1e-6)
    )
    x = bridge.normal(*shape) + np.float32(mean)
    y = np.asarray(jax.jit(ours)(x), np.float64)
    exact = bridge.last(theirs.double()(bridge.first(x).double()))
    assert np.mean((y - exact) ** 2) < (4 * 2.0**-24) ** 2 * np.mean(exact**2)


def test_group_norm_in_float64(bridge):
    with jax.enable_x64(True):
        ours = norms.GroupNorm(4, 16, 1e-6, dtype=jnp.float64)
        x = np.random.default_rng(0).standard_normal((2, 3, 4, 5, 16)) + 100
        theirs = torch.nn.GroupNorm(4, 16, 1e-6).double()
        y = ours(jnp.asarray(x))
        assert y.dtype == jnp.float64
        assert bridge.error(y, bridge.last(theirs(bridge.first(x)))) < 1e-12


def test_group_norm_wants_whole_groups():
    with pytest.raises(ValueError, match="10 channels are not divisible by 4"):
        norms.GroupNorm(4, 10)


@pytest.mark.parametrize("frames", [(1, 1), (2, 2), (2, 8), (3, 3), (3, 9), (5, 17), (1, 4)])
def test_spatial_norm(bridge, frames):
    ours, theirs = bridge.load(
        lambda: spatial_norm.SpatialNorm3D(8, 4, 4, **bridge.build()),
        source.CogVideoXSpatialNorm3D(8, 4, 4),
    )
    zq = bridge.normal(2, frames[0], 4, 3, 4)
    f = bridge.normal(2, frames[1], 8, 6, 8, seed=1)
    y, cache = bridge.run(ours, f, zq)
    reference, their_cache = theirs(bridge.first(f), bridge.first(zq))
    assert bridge.error(y, bridge.last(reference)) < EXACT
    assert cache == dict.fromkeys(their_cache)


@pytest.mark.parametrize("name", ["silu", "swish", "mish", "gelu", "relu", "GELU"])
def test_activations(bridge, name):
    x = 4 * bridge.normal(50, 40)
    reference = source.get_activation(name)(torch.from_numpy(x)).numpy()
    assert bridge.error(activations.get_activation(name)(jnp.asarray(x)), reference) < 1e-6


def test_unknown_activation():
    with pytest.raises(ValueError, match="act_fn: expected one of silu"):
        activations.get_activation("tanh")


def test_dropout():
    x = jnp.ones((100, 100))
    dropout = activations.Dropout(0.25, rngs=nnx.Rngs(0))
    first, second = dropout(x), dropout(x)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert float(jnp.mean(first == 0)) == pytest.approx(0.25, abs=0.03)
    assert not np.array_equal(first, second)
    dropout.eval()
    assert dropout(x) is x
    assert not jax.tree.leaves(nnx.state(activations.Dropout(0.0, rngs=nnx.Rngs(0))))
    with pytest.raises(ValueError, match=r"probability in \[0, 1\), found 1"):
        activations.Dropout(1, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_repeats_with_the_seed_and_scales_as_torch(dtype):
    x = jnp.linspace(-4, 4, 10_000, dtype=dtype)  # no zero

    def draws(seed):
        dropout = activations.Dropout(0.1, rngs=nnx.Rngs(params=0, dropout=seed))
        return [np.asarray(nnx.jit(lambda d, x: d(x))(dropout, x), np.float64) for _ in range(2)]

    (a, b), (c, d), (other, _) = draws(1), draws(1), draws(2)
    assert np.array_equal(a, c)
    assert np.array_equal(b, d)
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, other)
    kept = np.asarray(x, np.float32) * np.float32(1 / 0.9)
    assert np.all((a == 0) | (a == kept.astype(dtype)))
    assert np.mean(a == 0) == pytest.approx(0.1, abs=0.015)
    if dtype == jnp.float32:
        theirs = torch.nn.functional.dropout(torch.from_numpy(np.array(x)), 0.1).numpy()
        both = (theirs != 0) & (a != 0)
        assert np.array_equal(a[both], theirs[both])
