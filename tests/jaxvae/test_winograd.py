import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaxvae import convolution, winograd
from jaxvae.products import sum_over_time

ONE = (1, 1, 1)
HIGHEST = lax.Precision.HIGHEST


def make(bridge, taps, size, batch=1, channels=(32, 40)):
    x = bridge.normal(batch, *size, channels[0])
    kernel = bridge.normal(*taps, *channels, seed=1) / np.sqrt(np.prod(taps) * channels[0])
    return x, kernel.astype(np.float32)


def exact(x, kernel, padding):
    """PyTorch's convolution in float64, and how far its float32 is from it (rms)."""
    outputs = [
        torch.nn.functional.conv3d(
            torch.from_numpy(x.transpose(0, 4, 1, 2, 3)).to(dtype),
            torch.from_numpy(kernel.transpose(4, 3, 0, 1, 2)).to(dtype),
            padding=padding,
        )
        .permute(0, 2, 3, 4, 1)
        .numpy()
        for dtype in (torch.float64, torch.float32)
    ]
    return outputs[0], rms(outputs[1] - outputs[0])


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
def test_nearly_as_exact_as_a_sum_and_as_pytorch(bridge, taps, size, padding, batch):
    x, kernel = make(bridge, taps, size, batch)
    reference, theirs = exact(x, kernel, padding)
    output = jax.jit(winograd.convolve, static_argnums=2)(x, kernel, padding)
    assert output.shape == reference.shape
    ours = rms(output - reference)
    direct = rms(sum_over_time(jnp.asarray(x), kernel, ONE, padding, ONE, HIGHEST) - reference)
    roundings = rms(reference) * np.finfo(np.float32).eps
    # at 32 channels; with more the sum loses more, and this does not
    assert ours < 1.5 * max(direct, theirs, roundings)


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
            lambda x, kernel: sum_over_time(x, kernel, ONE, (0, 1, 1), ONE, HIGHEST),
        )
    )
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a, b)


def test_float64_is_exact(bridge):
    with jax.enable_x64(True):
        x, kernel = make(bridge, (3, 3, 3), (4, 9, 10))
        reference, _ = exact(x, kernel, (0, 1, 1))
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


def test_as_exact_as_a_sum_with_many_channels(bridge):
    x, kernel = make(bridge, (3, 3, 3), (6, 12, 12), channels=(128, 64))
    reference, _ = exact(x, kernel, (0, 1, 1))
    direct = sum_over_time(jnp.asarray(x), kernel, ONE, (0, 1, 1), ONE, HIGHEST)
    ours = winograd.convolve(x, kernel, (0, 1, 1))
    assert rms(ours - reference) < 1.1 * rms(direct - reference)


def test_a_pair_of_frames_that_is_too_large_is_not_transformed(monkeypatch):
    x, kernel = (
        jax.ShapeDtypeStruct(shape, jnp.float32)
        for shape in ((1, 4, 480, 720, 128), (3, 3, 3, 128, 128))
    )
    assert not winograd.applies(x, kernel, ONE, ONE, HIGHEST)
    monkeypatch.setattr(winograd, "BLOCK", 64 * 240 * 360 * 128 * 4)
    assert winograd.applies(x, kernel, ONE, ONE, HIGHEST)


def test_bfloat16_is_computed_wide_and_rounded_once(bridge):
    x, kernel = make(bridge, (3, 3, 3), (4, 9, 10))
    x, kernel = jnp.asarray(x, jnp.bfloat16), jnp.asarray(kernel, jnp.bfloat16)
    bias = jnp.zeros(40, jnp.bfloat16)
    ours = convolution.convolve(x, kernel, bias, padding=(0, 1, 1))
    reference, _ = exact(*(np.asarray(a, np.float32) for a in (x, kernel)), (0, 1, 1))
    assert ours.dtype == jnp.bfloat16
    rounded = reference.astype(jnp.bfloat16)
    assert np.mean(np.asarray(ours) != rounded) < 1e-3
