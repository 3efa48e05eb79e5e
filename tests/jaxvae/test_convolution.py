from functools import partial

import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae.layers import convolution
from jaxvae.models.cogvideox import causal_convolution
from jaxvae.models.wan import causal_convolution as wan

EXACT = 2e-6  # relative to the largest value: a few roundings of float32


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
@pytest.mark.usefixtures("platform")
def test_conv3d(bridge, options):
    ours, theirs = bridge.load(
        lambda: convolution.Conv3d(3, 5, **options, **bridge.build()),
        source.CogVideoXSafeConv3d(3, 5, **options),
    )
    x = bridge.normal(2, 7, 8, 9, 3)
    assert bridge.error(bridge.run(ours, x), bridge.last(theirs(bridge.first(x)))) < EXACT


def test_the_platform_compiled_for_decides_on_the_formulation(bridge):
    conv = convolution.Conv3d(3, 5, 3, **bridge.build())
    counts = {}
    for side in (8, 9):  # frames of 64 and 81 pixels
        traced = jax.jit(conv.__call__).trace(bridge.normal(1, 4, side, side, 3))
        for platform in ("cpu", "cuda", "tpu"):
            program = traced.lower(lowering_platforms=(platform,)).as_text()
            counts[platform, side] = program.count("stablehlo.convolution")
    assert counts.pop(("cpu", 9)) == 3
    assert set(counts.values()) == {1}


def test_large_images_lie_one_after_the_other_on_a_tpu(bridge, monkeypatch):
    monkeypatch.setattr(convolution, "LARGE", 4)
    conv = convolution.Conv2d(3, 5, 3, **bridge.build())
    traced = jax.jit(conv.__call__).trace(bridge.normal(6, 8, 7, 3))
    for platform in ("cpu", "cuda", "tpu"):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("LayoutConstraint" in program) == (platform == "tpu")


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize(
    "causal", [causal_convolution.CausalConv3d, partial(wan.CausalConv3d, padding=1)]
)
def test_a_cache_is_taken_before_the_convolution(bridge, causal, frames):
    """Or a TPU keeps the input of every convolution until the end."""
    conv = causal(3, 5, 3, **bridge.build())
    traced = jax.jit(conv.__call__).trace(bridge.normal(1, frames, 8, 7, 3))
    program = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "optimization_barrier" in program


def test_only_a_tpu_takes_large_inputs_in_turns(bridge, monkeypatch):
    monkeypatch.setattr(convolution, "LARGE", 4 * 8 * 7 * 3)  # a frame
    conv = convolution.Conv3d(3, 5, 3, **bridge.build())
    traced = jax.jit(conv.__call__).trace(bridge.normal(1, 5, 8, 7, 3))
    for platform in ("cpu", "cuda", "tpu"):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.while" in program) == (platform == "tpu")


IN_TURN = [
    # shape, kernel, stride, padding, dilation
    ((2, 8, 5, 6, 3), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((1, 10, 5, 6, 3), (3, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1)),
    ((1, 12, 7, 6, 3), (3, 2, 3), (2, 2, 1), (1, 0, 2), (2, 1, 1)),
    ((2, 6, 5, 6, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
]


@pytest.mark.parametrize(("shape", "taps", "stride", "padding", "dilation"), IN_TURN)
def test_large_inputs_take_turns_on_a_tpu(
    bridge, monkeypatch, shape, taps, stride, padding, dilation
):
    x, kernel, bias = (bridge.normal(*one) for one in (shape, (*taps, 3, 5), (5,)))
    how = (stride, padding, dilation, jax.lax.Precision.HIGHEST)

    def rounded(*operands):
        return convolution._rounded(*operands, how)

    def in_turn():  # anew each time: JAX remembers what it traced
        return lambda *operands: convolution._frames_in_turn(*operands, how)

    whole, gradients = jax.vjp(rounded, x, kernel, bias)
    assert "scan" not in str(jax.make_jaxpr(in_turn())(x, kernel, bias))
    monkeypatch.setattr(convolution, "LARGE", 4 * max(x.size, whole.size) - 1)
    program = str(jax.make_jaxpr(in_turn())(x, kernel, bias))
    assert f"length={whole.shape[1]}" in program
    output, gradients_in_turn = jax.vjp(in_turn(), x, kernel, bias)
    assert bridge.error(output, whole) < EXACT
    for one, other in zip(gradients_in_turn(whole), gradients(whole), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("shape", [(1, 2, 8, 8, 3), (1, 8, 2, 8, 3)])
def test_too_small_an_input_is_an_error_as_in_torch(bridge, shape):
    ours, theirs = bridge.load(
        lambda: convolution.Conv3d(3, 5, 3, **bridge.build()), source.CogVideoXSafeConv3d(3, 5, 3)
    )
    x = bridge.normal(*shape)
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size"):
        theirs(bridge.first(x))
    with pytest.raises(ValueError, match="smaller than the kernel"):
        ours(x)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0), (2, 1)])
def test_conv2d(bridge, stride, padding):
    ours, theirs = bridge.load(
        lambda: convolution.Conv2d(3, 5, 3, stride, padding, **bridge.build()),
        torch.nn.Conv2d(3, 5, 3, stride, padding),
    )
    x = bridge.normal(2, 7, 8, 3)
    assert bridge.error(bridge.run(ours, x), bridge.last(theirs(bridge.first(x)))) < EXACT


def test_linear(bridge):
    ours, theirs = bridge.load(
        lambda: convolution.Linear(6, 5, **bridge.build()), torch.nn.Linear(6, 5)
    )
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
@pytest.mark.usefixtures("platform")
def test_causal_conv_and_its_cache(bridge, options):
    ours, theirs = bridge.load(
        lambda: causal_convolution.CausalConv3d(3, 5, **options, **bridge.build()),
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
    y, _ = nnx.eval_shape(
        lambda: causal_convolution.CausalConv3d(3, 5, (3, 5, 3), **bridge.build())(x)
    )
    assert y.shape == (1, 2, 6, 10, 5)


def test_unknown_precision_is_an_error(bridge):
    with pytest.raises(ValueError, match="'highest', found 'double'"):
        convolution.Linear(2, 2, **bridge.build(precision="double"))


def test_initial_parameters_are_spread_as_in_torch(bridge):
    torch.manual_seed(0)
    ours, theirs = convolution.Conv3d(32, 64, 3, **bridge.build()), torch.nn.Conv3d(32, 64, 3)
    for a, b in ((ours.kernel, theirs.weight), (ours.bias, theirs.bias)):
        assert np.abs(a[...]).max() == pytest.approx(float(b.abs().max()), rel=0.1)
        assert np.std(a[...]) == pytest.approx(float(b.std()), rel=0.2)
