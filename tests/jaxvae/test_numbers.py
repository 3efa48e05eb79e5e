"""bfloat16, float16 and float64 against PyTorch's, each judged by its distance from float64."""

import copy
import math
from functools import partial

import diffusers
import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.downsampling import CogVideoXDownsample3D
from diffusers.models.upsampling import CogVideoXUpsample3D
from flax import nnx

from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig
from jaxvae.io.weights import load_torch_state
from jaxvae.layers import activations, convolution, norms
from jaxvae.layers.dtypes import check_dtypes
from jaxvae.layers.rounding import add, multiply_add, narrow, widen
from jaxvae.models.cogvideox import blocks, causal_convolution, resampling, spatial_norm

BF16 = jnp.dtype(jnp.bfloat16)
# As far from float64 as PyTorch's own result. Half of all roundings doubled make it 1.4.
AS_TORCH = 1.1
SAME = 0.01  # of the values; sums in another order round the other way near a tie


def bfloat16(array):
    return np.asarray(array, np.float32).astype(BF16)


def to_torch(array):
    """A channel-last bfloat16 array as a channel-first bfloat16 tensor."""
    moved = np.moveaxis(np.asarray(array, np.float32), -1, 1)
    return torch.from_numpy(np.ascontiguousarray(moved)).bfloat16()


def to_numpy(tensor):
    return np.moveaxis(tensor.detach().double().numpy(), 1, -1)


def rms(a):
    return np.sqrt(np.mean(np.square(np.asarray(a, np.float64))))


def distance(ours, theirs, reference):
    """Our distance from float64, in units of PyTorch's own."""
    assert np.shape(ours) == reference.shape
    return rms(np.asarray(ours, np.float64) - reference) / rms(theirs - reference)


def sides(bridge, ours, theirs):
    """Both in bfloat16 with the same weights, and the reference in float64 with those weights."""
    theirs = bridge.randomise(theirs).bfloat16()
    ours = nnx.eval_shape(ours)
    load_torch_state(ours, bridge.state(copy.deepcopy(theirs).float()))
    ours.eval()
    return ours, theirs, copy.deepcopy(theirs).double()


def judge(bridge, ours, theirs, *args):
    """Call all three on bfloat16 arguments; return (distance, share of values that differ)."""
    ours, theirs, double = sides(bridge, ours, theirs)
    args = [bfloat16(a) for a in args]
    output = bridge.run(ours, *(jnp.asarray(a) for a in args))
    tensors = [to_torch(a) for a in args]
    reference, exact = theirs(*tensors), double(*(t.double() for t in tensors))
    if isinstance(reference, tuple):
        output, reference, exact = output[0], reference[0], exact[0]
    assert output.dtype == BF16
    reference, exact = to_numpy(reference), to_numpy(exact)
    found = distance(output, reference, exact)
    return found, np.mean(np.asarray(output, np.float64) != reference)


TINY = {
    "down_block_types": ("CogVideoXDownBlock3D",) * 2,
    "up_block_types": ("CogVideoXUpBlock3D",) * 2,
    "block_out_channels": (4, 8),
    "latent_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 2,
}

# Around the smallest normal number XLA flushes to zero; below -87 the sigmoid itself is that small.
VALUES = np.arange(2**16, dtype=np.uint16).view(BF16)
NORMAL = VALUES[
    (np.abs(VALUES.astype(np.float32)) > 1e-37) & (np.abs(VALUES.astype(np.float32)) < 87)
]


@pytest.mark.parametrize("name", ["silu", "relu", "mish", "gelu"])
def test_activations_of_every_bfloat16_number(name):
    theirs = source.get_activation(name)
    tensor = torch.from_numpy(NORMAL.astype(np.float32))
    ours = np.asarray(activations.get_activation(name)(jnp.asarray(NORMAL)), np.float64)
    reference = theirs(tensor.bfloat16()).double().numpy()
    if name != "gelu":
        assert np.array_equal(ours, reference)
        return
    # Below -3 PyTorch's x * (1 + erf) / 2 cancels, in float64 too; ours, through erfc, does not.
    exact = np.array([0.5 * x * math.erfc(-x / math.sqrt(2)) for x in NORMAL.tolist()])
    cancels = NORMAL <= -3
    assert np.array_equal(ours[~cancels], reference[~cancels])
    size = np.maximum(np.abs(exact), 1e-37)[cancels]
    assert rms((ours - exact)[cancels] / size) < 0.1 * rms((reference - exact)[cancels] / size)


def test_roundings_survive_inside_of_one_program(bridge):
    """XLA may drop a conversion to bfloat16 and back; here every rounding of PyTorch's stays."""
    x, scale, shift = (bfloat16(bridge.normal(20_000, seed=i)) for i in range(3))

    @jax.jit
    def elementwise(x, scale, shift):
        return narrow(widen(add(multiply_add(x, scale, shift), x)) * 3, BF16)

    @jax.jit
    def total(x, scale):
        return jnp.sum(widen(narrow(widen(x) * widen(scale), BF16)))

    a, b, c = (torch.from_numpy(v.astype(np.float32)).bfloat16() for v in (x, scale, shift))
    reference = ((a * b + c + a) * 3).float().numpy()
    assert np.array_equal(np.asarray(elementwise(x, scale, shift), np.float32), reference)
    assert float(total(x, scale)) == pytest.approx(float((a * b).double().sum()), abs=1e-2)


def test_accelerators_get_bfloat16_operands_and_give_float32(bridge):
    """XLA on CPU widens what is narrow, so that only the program tells."""
    kernel = jnp.asarray(bridge.normal(3, 3, 3, 4, 6), BF16)
    x = jnp.asarray(bridge.normal(1, 4, 5, 5, 4), BF16)
    run = jax.jit(partial(convolution.convolve, bias=jnp.zeros(6, BF16)))
    text = run.trace(x, kernel).lower(lowering_platforms=("cuda",)).as_text()
    (line,) = (line for line in text.splitlines() if "stablehlo.convolution" in line)
    types = line.rsplit(" : ", 1)[1]
    assert types == "(tensor<1x4x5x5x4xbf16>, tensor<3x3x3x4x6xbf16>) -> tensor<1x2x3x3x6xf32>"


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (
            lambda **b: convolution.Conv3d(16, 12, 3, padding=1, **b),
            lambda: source.CogVideoXSafeConv3d(16, 12, 3, padding=1),
            (1, 4, 9, 9, 16),
        ),
        (
            lambda **b: causal_convolution.CausalConv3d(16, 12, 3, **b),
            lambda: source.CogVideoXCausalConv3d(16, 12, 3),
            (1, 3, 6, 6, 16),
        ),
        (
            lambda **b: convolution.Conv2d(16, 12, 3, 2, **b),
            lambda: torch.nn.Conv2d(16, 12, 3, 2),
            (4, 9, 9, 16),
        ),
        (
            lambda **b: convolution.Linear(64, 50, **b),
            lambda: torch.nn.Linear(64, 50),
            (40, 64),
        ),
    ],
)
def test_products_are_added_in_float32_and_rounded_once(bridge, ours, theirs, shape):
    found, differ = judge(
        bridge, lambda: ours(**bridge.build(dtype=BF16)), theirs(), bridge.normal(*shape)
    )
    assert found < 1.01
    assert differ < SAME


@pytest.mark.parametrize("mean", [0, 30])
def test_group_norm(bridge, mean):
    found, differ = judge(
        bridge,
        lambda: norms.GroupNorm(4, 16, 1e-6, dtype=BF16),
        torch.nn.GroupNorm(4, 16, 1e-6),
        bridge.normal(2, 3, 9, 9, 16) + mean,
    )
    assert found < 1.01
    assert differ < SAME


def test_spatial_norm(bridge):
    found, differ = judge(
        bridge,
        lambda: spatial_norm.SpatialNorm3D(8, 4, 4, **bridge.build(dtype=BF16)),
        source.CogVideoXSpatialNorm3D(8, 4, 4),
        bridge.normal(2, 3, 8, 6, 8),
        bridge.normal(2, 3, 4, 3, 4, seed=1),
    )
    assert found < AS_TORCH
    assert differ < SAME


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (resampling.Downsample3D, CogVideoXDownsample3D),
        (resampling.Upsample3D, CogVideoXUpsample3D),
    ],
)
def test_pooling_and_resizing_are_bit_exact(bridge, ours, theirs):
    a, b, _ = sides(
        bridge,
        lambda: ours(3, 3, compress_time=True, **bridge.build(dtype=BF16)),
        theirs(3, 3, compress_time=True),
    )
    copies = np.zeros((3, 3, 3, 3), np.float32)  # the middle pixel of the same channel
    copies[1, 1] = np.eye(3)
    a.conv.kernel.set_value(jnp.asarray(copies, BF16))
    a.conv.bias.set_value(jnp.zeros(3, BF16))
    b.conv.weight.copy_(torch.from_numpy(copies.transpose(3, 2, 0, 1)))
    b.conv.bias.zero_()
    x = bfloat16(bridge.normal(2, 5, 6, 6, 3))
    y = np.asarray(bridge.run(a, jnp.asarray(x)), np.float64)
    assert np.array_equal(y, to_numpy(b(to_torch(x))))


@pytest.fixture(scope="module")
def models(bridge):
    """The tiny model in bfloat16 on both sides, and in float64 with the same weights."""
    theirs = bridge.randomise(diffusers.AutoencoderKLCogVideoX(**TINY)).bfloat16()
    state = bridge.state(copy.deepcopy(theirs).float())
    config = CogVideoXVAEConfig(**TINY)
    return config, state, theirs, copy.deepcopy(theirs).double()


def test_resnet_with_temb(bridge):
    options = {"out_channels": 16, "temb_channels": 6, "groups": 4}
    ours, theirs, double = sides(
        bridge,
        lambda: blocks.ResnetBlock3D(8, **options, **bridge.build(dtype=BF16)),
        source.CogVideoXResnetBlock3D(8, **options),
    )
    x, temb = bfloat16(bridge.normal(1, 3, 9, 9, 8)), bfloat16(bridge.normal(1, 6, seed=1))
    y = bridge.run(ours, jnp.asarray(x), jnp.asarray(temb))[0]
    assert y.dtype == BF16
    reference = theirs(to_torch(x), to_torch(temb))[0]
    exact = double(to_torch(x).double(), to_torch(temb).double())[0]
    assert distance(y, to_numpy(reference), to_numpy(exact)) < AS_TORCH
    # A value that one convolution rounded the other way reaches all of its group.
    assert np.mean(np.asarray(y, np.float64) != to_numpy(reference)) < 0.1


def test_bfloat16_model(bridge, models):
    config, state, theirs, double = models
    ours = AutoencoderKLCogVideoX.from_torch_state(config, state, jnp.bfloat16)
    for side in (ours, theirs, double):  # two chunks each way
        side.num_sample_frames_batch_size = 4
    x, z = bfloat16(bridge.normal(1, 9, 10, 10, 3)), bfloat16(bridge.normal(1, 5, 5, 5, 4))
    posterior = ours.encode(x)
    reference = theirs.encode(to_torch(x)).latent_dist.parameters
    exact = double.encode(to_torch(x).double()).latent_dist.parameters
    assert posterior.parameters.dtype == BF16
    assert distance(posterior.parameters, to_numpy(reference), to_numpy(exact)) < AS_TORCH
    video = ours.decode(z)
    reference = theirs.decode(to_torch(z)).sample
    exact = double.decode(to_torch(z).double()).sample
    assert video.dtype == BF16
    assert distance(video, to_numpy(reference), to_numpy(exact)) < AS_TORCH


@pytest.mark.slow
def test_parameters_are_rounded_to_the_dtype_of_the_computation(bridge, models):
    """float32 parameters under bfloat16 give what bfloat16 ones give, and the other way round."""
    config, rounded, _, _ = models
    fine = {name: array * np.float32(1.001) for name, array in rounded.items()}
    coarse = {name: bfloat16(array).astype(np.float32) for name, array in fine.items()}
    x = bridge.normal(1, 1, 6, 6, 3)

    def encode(state, dtype, param_dtype):
        vae = AutoencoderKLCogVideoX.from_torch_state(config, state, dtype, param_dtype=param_dtype)
        kept = {leaf.dtype for leaf in jax.tree.leaves(nnx.state(vae, nnx.Param))}
        assert kept == {jnp.dtype(param_dtype or dtype)}
        assert vae.param_dtype == jnp.dtype(param_dtype or dtype)
        output = vae.encode(x).parameters
        assert output.dtype == dtype
        return np.asarray(output, np.float32)

    master = encode(fine, jnp.bfloat16, jnp.float32)
    assert np.array_equal(master, encode(fine, jnp.bfloat16, None))
    stored = encode(fine, jnp.float32, jnp.bfloat16)
    assert np.array_equal(stored, encode(coarse, jnp.float32, None))
    assert not np.array_equal(stored, encode(fine, jnp.float32, None))


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("side", [8, 9])
def test_gradients_of_a_bfloat16_convolution(bridge, side):
    ours, theirs, double = sides(
        bridge,
        lambda: convolution.Conv3d(4, 6, 3, **bridge.build(dtype=BF16)),
        source.CogVideoXSafeConv3d(4, 6, 3),
    )
    x = bfloat16(bridge.normal(1, 4, side, side, 4))
    kernel, bias = ours.kernel[...], ours.bias[...]
    weights = bfloat16(bridge.normal(1, 2, side - 2, side - 2, 6, seed=1))

    def loss(x, kernel):
        y = convolution.convolve(x, kernel, bias)
        return jnp.sum(widen(y) * weights.astype(np.float32))

    found = jax.jit(jax.grad(loss, (0, 1)))(jnp.asarray(x), kernel)
    references = []
    with torch.enable_grad():
        for module in (theirs, double):
            dtype = module.weight.dtype
            leaf = to_torch(x).to(dtype).requires_grad_()
            (module(leaf) * to_torch(weights).to(dtype)).sum().backward()
            grads = (to_numpy(leaf.grad), module.weight.grad.double().permute(2, 3, 4, 1, 0))
            references.append([np.asarray(g) for g in grads])
    for ours_, reference, exact in zip(found, *references, strict=True):
        assert ours_.dtype == BF16
        assert distance(ours_, reference, exact) < AS_TORCH
    fine = jax.grad(loss, 1)(jnp.asarray(x), widen(kernel))
    assert fine.dtype == jnp.float32
    assert np.array_equal(fine.astype(BF16), found[1])
    # Forward mode as well: the tangent of a linear function in its own direction is its value.
    tangent = jax.jvp(lambda x: convolution.convolve(x, kernel, 0 * bias), (x,), (x,))[1]
    value = convolution.convolve(jnp.asarray(x), kernel, 0 * bias)
    assert np.array_equal(tangent, value)


@pytest.mark.slow
def test_float64(bridge):
    with jax.enable_x64(True):
        theirs = bridge.randomise(diffusers.AutoencoderKLCogVideoX(**TINY)).double()
        config = CogVideoXVAEConfig(**TINY)
        ours = AutoencoderKLCogVideoX.from_torch_state(config, bridge.state(theirs), jnp.float64)
        for side in (ours, theirs):  # two chunks each way
            side.num_sample_frames_batch_size = 4
        x, z = (bridge.normal(*s).astype(np.float64) for s in ((1, 9, 9, 10, 3), (1, 5, 5, 4, 4)))
        reference = theirs.encode(bridge.first(x)).latent_dist
        posterior = ours.encode(x)
        for name in ("mean", "logvar", "std"):
            value = getattr(posterior, name)
            assert value.dtype == jnp.float64
            assert bridge.error(value, bridge.last(getattr(reference, name))) < 1e-12
        video = ours.decode(z)
        assert video.dtype == jnp.float64
        assert bridge.error(video, bridge.last(theirs.decode(bridge.first(z)).sample)) < 1e-12


def test_float16_keeps_its_small_numbers():
    x = np.array([3e-5, 7e-8, 65519.0, 1.0004], np.float32)
    found = jax.jit(lambda x: narrow(x, jnp.float16).astype(jnp.float32))(x)
    assert np.array_equal(found, torch.from_numpy(x).half().float().numpy())


def test_float16_is_warned_about(bridge, pair):
    with pytest.warns(UserWarning, match=r"nothing above 65504.*use bfloat16 or float32"):
        nnx.eval_shape(
            lambda: AutoencoderKLCogVideoX(
                pair.ours.config, rngs=nnx.Rngs(0), dtype=jnp.float16, param_dtype=jnp.float32
            )
        )
    assert check_dtypes(jnp.float32, jnp.float16) == (jnp.float32, jnp.float16)  # only stored


def test_formats_that_cannot_be_used():
    with pytest.raises(ValueError, match=r"param_dtype: float64 needs 64-bit types.*enable_x64"):
        check_dtypes(jnp.float32, jnp.float64)
    with pytest.raises(ValueError, match=r"dtype: expected one of float32, .*found int32"):
        check_dtypes(jnp.int32)
    with pytest.raises(ValueError, match=r"dtype: expected one of float32, .*found 'bf16'"):
        check_dtypes("bf16")
    with pytest.raises(ValueError, match=r"dtype: expected .*found None"):
        check_dtypes(None)
    with jax.enable_x64(True):
        assert check_dtypes(jnp.float64) == (jnp.float64, jnp.float64)
