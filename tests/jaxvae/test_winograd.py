import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaxvae.layers import convolution, winograd
from jaxvae.layers.products import sum_over_time
from tests.commands import python

ONE = (1, 1, 1)
HIGHEST = lax.Precision.HIGHEST


def make(bridge, taps, size, batch=1, channels=(32, 40)):
    x = bridge.normal(batch, *size, channels[0])
    kernel = bridge.normal(*taps, *channels, seed=1) / np.sqrt(np.prod(taps) * channels[0])
    return x, kernel.astype(np.float32)


def exact(x, kernel, padding):
    """PyTorch's convolution in float64."""
    return (
        torch.nn.functional.conv3d(
            torch.from_numpy(x.transpose(0, 4, 1, 2, 3)).double(),
            torch.from_numpy(kernel.transpose(4, 3, 0, 1, 2)).double(),
            padding=padding,
        )
        .permute(0, 2, 3, 4, 1)
        .numpy()
    )


def rms(x):
    return float(np.sqrt(np.mean(np.square(np.asarray(x, np.float64)))))


@pytest.mark.parametrize(
    ("taps", "size", "padding", "batch"),
    [
        ((3, 3, 3), (6, 10, 12), (0, 1, 1), 1),  # whole pairs
        ((3, 3, 3), (5, 9, 11), (0, 1, 1), 2),  # and one half left in each direction
        ((3, 3, 3), (3, 10, 12), (0, 0, 0), 1),  # one frame out
        ((3, 3, 3), (4, 9, 10), (1, 2, 1), 1),
        ((1, 3, 3), (3, 10, 12), (0, 1, 1), 1),
        ((1, 3, 3), (2, 9, 11), (0, 0, 1), 2),
    ],
)
def test_as_exact_as_a_sum(bridge, taps, size, padding, batch):
    check_exact(*make(bridge, taps, size, batch), padding)


def test_so_it_is_with_many_channels(bridge):
    check_exact(*make(bridge, (3, 3, 3), (6, 12, 12), channels=(128, 64)), (0, 1, 1))


def check_exact(x, kernel, padding):
    """A sum of n products loses 0.3 sqrt(n) roundings where it takes one after the other, and less
    where a processor takes several at once."""
    reference = exact(x, kernel, padding)
    output = jax.jit(winograd.convolve, static_argnums=2)(x, kernel, padding)
    assert output.shape == reference.shape
    roundings = 0.3 * np.sqrt(np.prod(kernel.shape[:-1]))
    assert rms(output - reference) < roundings * 2.0**-24 * rms(reference)


def test_large_inputs_take_turns(bridge, monkeypatch):
    for taps, frames in (((3, 3, 3), 14), ((1, 3, 3), 6)):
        x, kernel = make(bridge, taps, (frames, 10, 9))
        whole = winograd.convolve(x, kernel, (0, 1, 1))
        # room for two pairs of six, or for two frames of six
        monkeypatch.setattr(
            winograd, "BLOCK", 2 * 4 ** (3 if frames == 14 else 2) * 25 * 32 * 4 + 1
        )
        program = jax.make_jaxpr(lambda *a: winograd.convolve(*a, (0, 1, 1)))(x, kernel)
        assert "length=3" in str(program)
        in_turns = winograd.convolve(x, kernel, (0, 1, 1))
        assert bridge.error(in_turns, whole) < 1e-6
        monkeypatch.undo()


def test_gradients_are_those_of_the_sum(bridge):
    x, kernel = make(bridge, (3, 3, 3), (4, 9, 10))
    weight = bridge.normal(1, 2, 9, 10, 40, seed=2)

    def loss(function, x, kernel):
        return jnp.sum(function(x, kernel) * weight)

    ours, theirs = (
        jax.jit(jax.grad(lambda x, kernel, f=function: loss(f, x, kernel), (0, 1)))(x, kernel)
        for function in (
            lambda x, kernel: winograd.convolve(x, kernel, (0, 1, 1)),
            lambda x, kernel: sum_over_time(x, kernel, (ONE, (0, 1, 1), ONE, HIGHEST)),
        )
    )
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a, b)


def test_float64_is_exact(bridge):
    with jax.enable_x64(True):
        x, kernel = make(bridge, (3, 3, 3), (4, 9, 10))
        reference = exact(x, kernel, (0, 1, 1))
        output = winograd.convolve(x.astype(np.float64), kernel.astype(np.float64), (0, 1, 1))
        assert bridge.error(output, reference) < 1e-14


@pytest.mark.parametrize(
    ("used", "change"),
    [
        (True, {}),
        (True, {"taps": (1, 3, 3)}),
        (False, {"taps": (3, 1, 3)}),
        (False, {"taps": (1, 1, 1)}),
        (False, {"size": (4, 8, 8)}),
        (False, {"channels": (3, 64)}),
        (False, {"channels": (64, 3)}),
        (False, {"stride": (1, 2, 2)}),
        (False, {"dilation": (1, 2, 2)}),
        (False, {"precision": lax.Precision.DEFAULT}),
    ],
)
def test_where_it_is_used(bridge, used, change):
    how = {"stride": ONE, "padding": (0, 1, 1), "dilation": ONE, "precision": HIGHEST}
    what = {"taps": (3, 3, 3), "size": (4, 9, 8), "channels": (32, 40)}
    how |= {name: value for name, value in change.items() if name in how}
    x, kernel = make(bridge, **what | {k: v for k, v in change.items() if k in what})
    bias = np.zeros(kernel.shape[-1], np.float32)
    program = jax.jit(lambda *a: convolution.convolve(*a, **how)).lower(x, kernel, bias).as_text()
    assert ("stablehlo.dot_general" in program) == used
    assert ("stablehlo.convolution" in program) != used


@pytest.mark.parametrize(("taps", "frames"), [((3, 3, 3), 6), ((1, 3, 3), 2)])
def test_rows_of_large_frames_take_turns(bridge, monkeypatch, taps, frames):
    x, kernel = make(bridge, taps, (frames, 14, 9))
    whole = winograd.convolve(x, kernel, (0, 1, 1))
    # room for three rows of seven: as they go into three bands
    monkeypatch.setattr(winograd, "BLOCK", 4 ** (3 if taps[0] == 3 else 2) * 3 * 5 * 32 * 4 + 1)
    program = jax.make_jaxpr(lambda *a: winograd.convolve(*a, (0, 1, 1)))(x, kernel)
    assert "length=6" in str(program)  # two pairs of frames, or frames, of three bands each
    assert bridge.error(winograd.convolve(x, kernel, (0, 1, 1)), whole) < 1e-6


def test_large_frames_need_no_more_memory_than_a_block():
    x, kernel = (
        jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in ((1, 4, 480, 720, 128), (3, 3, 3, 128, 128))
    )
    program = jax.jit(lambda x, k: winograd.convolve(x, k, (0, 1, 1))).lower(x, kernel).compile()
    sizes = program.memory_analysis()
    # transformed in and out, the input padded and the output put in order
    assert sizes.temp_size_in_bytes < 4 * winograd.BLOCK + 2 * 4 * x.size


@pytest.mark.slow
def test_bfloat16_is_computed_wide_and_rounded_once(bridge):
    x, kernel = make(bridge, (3, 3, 3), (4, 9, 10))
    x, kernel = jnp.asarray(x, jnp.bfloat16), jnp.asarray(kernel, jnp.bfloat16)
    bias = jnp.zeros(40, jnp.bfloat16)
    ours = convolution.convolve(x, kernel, bias, padding=(0, 1, 1))
    reference = exact(*(np.asarray(a, np.float32) for a in (x, kernel)), (0, 1, 1))
    assert ours.dtype == jnp.bfloat16
    rounded = reference.astype(jnp.bfloat16)
    assert np.mean(np.asarray(ours) != rounded) < 1e-3


SPLIT = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxvae.layers import convolution

random = np.random.default_rng(0)
x = random.standard_normal((1, 4, 12, 16, 32), np.float32)
kernel = random.standard_normal((3, 3, 3, 32, 32), np.float32)
run = jax.jit(lambda x: convolution.convolve(x, kernel, jnp.zeros(32), padding=(0, 1, 1)))
assert "dot_general" in run.lower(x).as_text()
one = np.asarray(run(x))
mesh = jax.make_mesh((4,), ("w",), axis_types=(AxisType.Auto,))
split = run(jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, None, None, "w"))))
print(float(np.abs(np.asarray(split) - one).max() / np.abs(one).max()))
"""


@pytest.mark.slow
def test_the_compiler_splits_it_over_devices():
    assert float(python("-W", "error", "-c", SPLIT, devices=4)) < 2e-6
