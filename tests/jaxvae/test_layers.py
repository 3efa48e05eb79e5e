import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae import layers

EXACT = 2e-6  # relative to the largest value: a few roundings of float32


@pytest.fixture(params=["cpu", "gpu"])
def backend(request, monkeypatch):
    """Both formulations of the convolution; the native one runs on CPU as well."""
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 1},
        {"kernel_size": (3, 1, 1)},
        {"kernel_size": (1, 3, 3), "padding": (0, 1, 1)},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (2, 3, 4), "stride": (2, 1, 3), "padding": (1, 2, 0)},
        {"kernel_size": 3, "dilation": (2, 1, 1)},
        {"kernel_size": 3, "stride": (2, 2, 1), "dilation": (2, 2, 1), "padding": (0, 2, 1)},
    ],
)
@pytest.mark.usefixtures("backend")
def test_conv3d(bridge, options):
    ours, theirs = bridge.load(
        lambda: layers.Conv3d(3, 5, **options, **bridge.build()),
        source.CogVideoXSafeConv3d(3, 5, **options),
    )
    x = bridge.normal(2, 7, 8, 9, 3)
    assert bridge.error(bridge.run(ours, x), bridge.last(theirs(bridge.first(x)))) < EXACT


def test_the_two_formulations_are_different_programs(bridge, monkeypatch):
    conv = layers.Conv3d(3, 5, 3, **bridge.build())
    counts = {}
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        for side in (8, 9):  # frames of 64 and 81 pixels
            program = str(jax.make_jaxpr(conv.__call__)(bridge.normal(1, 4, side, side, 3)))
            counts[backend, side] = program.count("conv_general_dilated[")
    assert counts == {("cpu", 8): 1, ("cpu", 9): 3, ("gpu", 8): 1, ("gpu", 9): 1}


@pytest.mark.parametrize("shape", [(1, 2, 8, 8, 3), (1, 8, 2, 8, 3)])
def test_too_small_an_input_is_an_error_as_in_torch(bridge, shape):
    ours, theirs = bridge.load(
        lambda: layers.Conv3d(3, 5, 3, **bridge.build()), source.CogVideoXSafeConv3d(3, 5, 3)
    )
    x = bridge.normal(*shape)
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size"):
        theirs(bridge.first(x))
    with pytest.raises(ValueError, match="smaller than the kernel"):
        ours(x)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0), (2, 1)])
def test_conv2d(bridge, stride, padding):
    ours, theirs = bridge.load(
        lambda: layers.Conv2d(3, 5, 3, stride, padding, **bridge.build()),
        torch.nn.Conv2d(3, 5, 3, stride, padding),
    )
    x = bridge.normal(2, 7, 8, 3)
    assert bridge.error(bridge.run(ours, x), bridge.last(theirs(bridge.first(x)))) < EXACT


def test_linear(bridge):
    ours, theirs = bridge.load(lambda: layers.Linear(6, 5, **bridge.build()), torch.nn.Linear(6, 5))
    x = bridge.normal(2, 6)
    assert bridge.error(bridge.run(ours, x), theirs(torch.from_numpy(x)).numpy()) < EXACT


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "pad_mode": "first"},
        {"kernel_size": 3, "pad_mode": "replicate"},
        {"kernel_size": 1},
        {"kernel_size": (1, 3, 3)},
        {"kernel_size": (3, 5, 3)},
        {"kernel_size": (3, 5, 3), "pad_mode": "replicate"},
        {"kernel_size": (4, 1, 3)},
        {"kernel_size": 3, "dilation": 2},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "stride": (2, 2, 1)},
    ],
)
@pytest.mark.usefixtures("backend")
def test_causal_conv_and_its_cache(bridge, options):
    ours, theirs = bridge.load(
        lambda: layers.CausalConv3d(3, 5, **options, **bridge.build()),
        source.CogVideoXCausalConv3d(3, 5, **options),
    )
    cache, their_cache = None, None
    for seed, frames in enumerate((6, 1, 2)):
        x = bridge.normal(2, frames, 8, 8, 3, seed=seed)
        if options.get("dilation") == 2 and frames < 3:
            continue  # the dilated kernel does not fit: an error on both sides
        y, cache = bridge.run(ours, x, cache)
        reference, their_cache = theirs(bridge.first(x), their_cache)
        assert bridge.error(y, bridge.last(reference)) < EXACT
        if options.get("pad_mode") == "replicate":
            assert cache is None
            assert their_cache is None
        elif theirs.time_kernel_size == 1:
            assert cache is None
        else:
            assert np.array_equal(cache, bridge.last(their_cache))


def test_swapped_padding_of_a_kernel_that_is_not_square(bridge):
    x = bridge.normal(1, 2, 8, 8, 3)
    y, _ = nnx.eval_shape(lambda: layers.CausalConv3d(3, 5, (3, 5, 3), **bridge.build())(x))
    assert y.shape == (1, 2, 6, 10, 5)


def test_unknown_precision_is_an_error(bridge):
    with pytest.raises(ValueError, match="'highest', found 'double'"):
        layers.Linear(2, 2, **bridge.build(precision="double"))


def test_initial_parameters_are_spread_as_in_torch(bridge):
    torch.manual_seed(0)
    ours, theirs = layers.Conv3d(32, 64, 3, **bridge.build()), torch.nn.Conv3d(32, 64, 3)
    for a, b in ((ours.kernel, theirs.weight), (ours.bias, theirs.bias)):
        assert np.abs(a[...]).max() == pytest.approx(float(b.abs().max()), rel=0.1)
        assert np.std(a[...]) == pytest.approx(float(b.std()), rel=0.2)


def test_nearest_index_for_many_sizes(bridge):
    pairs = [(old, new) for old in range(1, 100) for new in range(1, 100)]
    pairs += [(41, 41 * 47), (49, 49 * 7), (3, 300), (90, 720), (61, 1000), (60, 3660)]
    rounded = []
    for old, new in pairs:
        x = torch.arange(old, dtype=torch.float32).reshape(1, 1, 1, 1, old)
        expected = torch.nn.functional.interpolate(x, size=(1, 1, new)).reshape(-1).numpy()
        index = layers.nearest_index(old, new)
        assert np.array_equal(index, expected), (old, new)
        if not np.array_equal(index, np.arange(new) * old // new):
            rounded.append((old, new))
    assert rounded  # pairs where float32 rounding shows
    assert (60, 3660) in rounded


def test_nearest_resize_in_all_axes(bridge):
    x = bridge.normal(2, 3, 4, 5, 2)
    for size in ((6, 12, 10), (4, 12, 7), (1, 2, 3)):
        expected = torch.nn.functional.interpolate(bridge.first(x), size=size)
        assert np.array_equal(layers.nearest_resize(jnp.asarray(x), size), bridge.last(expected))


@pytest.mark.parametrize("mean", [0, 30, 100])
@pytest.mark.parametrize("shape", [(2, 3, 16, 16, 16), (2, 9, 9, 16), (2, 50, 16), (3, 16)])
def test_group_norm_is_as_close_to_float64_as_torch(bridge, mean, shape):
    ours, theirs = bridge.load(
        lambda: layers.GroupNorm(4, 16, 1e-6, dtype=jnp.float32), torch.nn.GroupNorm(4, 16, 1e-6)
    )
    x = bridge.normal(*shape) + np.float32(mean)
    y = np.asarray(jax.jit(ours)(x), np.float64)
    reference32 = bridge.last(theirs(bridge.first(x)))
    reference64 = bridge.last(theirs.double()(bridge.first(x).double()))
    floor = np.sqrt(np.mean((reference32 - reference64) ** 2))
    assert np.sqrt(np.mean((y - reference64) ** 2)) < 2 * floor
    assert np.sqrt(np.mean((y - reference64) ** 2)) < 2e-7


def test_group_norm_in_float64(bridge):
    with jax.enable_x64(True):
        ours = layers.GroupNorm(4, 16, 1e-6, dtype=jnp.float64)
        x = np.random.default_rng(0).standard_normal((2, 3, 4, 5, 16)) + 100
        theirs = torch.nn.GroupNorm(4, 16, 1e-6).double()
        y = ours(jnp.asarray(x))
        assert y.dtype == jnp.float64
        assert bridge.error(y, bridge.last(theirs(bridge.first(x)))) < 1e-12


def test_group_norm_wants_whole_groups():
    with pytest.raises(ValueError, match="10 channels are not divisible by 4"):
        layers.GroupNorm(4, 10)


@pytest.mark.parametrize("frames", [(1, 1), (2, 2), (2, 8), (3, 3), (3, 9), (5, 17), (1, 4)])
def test_spatial_norm(bridge, frames):
    ours, theirs = bridge.load(
        lambda: layers.SpatialNorm3D(8, 4, 4, **bridge.build()),
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
    assert bridge.error(layers.get_activation(name)(jnp.asarray(x)), reference) < 1e-6


def test_unknown_activation():
    with pytest.raises(ValueError, match="act_fn: expected one of silu"):
        layers.get_activation("tanh")


def test_dropout():
    x = jnp.ones((100, 100))
    dropout = layers.Dropout(0.25, rngs=nnx.Rngs(0))
    first, second = dropout(x), dropout(x)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert float(jnp.mean(first == 0)) == pytest.approx(0.25, abs=0.03)
    assert not np.array_equal(first, second)
    dropout.eval()
    assert dropout(x) is x
    assert not jax.tree.leaves(nnx.state(layers.Dropout(0.0, rngs=nnx.Rngs(0))))
    with pytest.raises(ValueError, match=r"probability in \[0, 1\), found 1"):
        layers.Dropout(1, rngs=nnx.Rngs(0))
