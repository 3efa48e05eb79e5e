"""Porting mistakes from public reports, as small as can be: one wrong module in a right net.

Every net is a stem, which is right, and the module under test. A case gives the module on both
sides, the port's once right and once wrong, and the cause to be found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from flax import nnx

from tests.nets import randomise, torch_of
from tests.ports import nnx_of

CHANNELS = 8


@dataclass(frozen=True)
class Case:
    """`torch()` makes the reference's module, `port(module, wrong)` the port's from it."""

    name: str
    source: str
    cause: str
    torch: Callable[[], torch.nn.Module]
    port: Callable[[Any, bool], nnx.Module]
    path: str = "middle"
    shape: tuple[int, ...] = (2, 3, 13, 17)


CASES: list[Case] = []


def case(**options: Any) -> None:
    """Register a case."""
    CASES.append(Case(**options))


def _net(self: Any, x: Any) -> Any:
    return self.middle(self.stem(x))


def nets(one: Case, wrong: bool, seed: int) -> tuple[torch.nn.Module, nnx.Module, np.ndarray]:
    """Reference, port and input."""
    torch.manual_seed(seed)
    stem = {3: torch.nn.Conv1d, 4: torch.nn.Conv2d, 5: torch.nn.Conv3d}[len(one.shape)]
    middle = one.torch()
    reference = randomise(torch_of(_net, stem=stem(3, CHANNELS, 1), middle=middle))
    port = nnx_of(_net, stem=conv(reference.stem), middle=one.port(reference.middle, wrong))
    port.eval()
    x = np.random.default_rng(seed).standard_normal(one.shape).astype(np.float32)
    return reference, port, x


def array(tensor: torch.Tensor) -> jax.Array:
    """A tensor's values."""
    return jnp.asarray(tensor.detach().numpy())


def kernel(weight: torch.Tensor) -> jax.Array:
    """PyTorch's (out, in, *space) as (*space, in, out)."""
    return jnp.moveaxis(array(weight), (0, 1), (-1, -2))


class Conv(nnx.Module):
    """A convolution with everything open to mistakes."""

    def __init__(self, weight: jax.Array, bias: jax.Array, stride: Any, padding: Any) -> None:
        self.kernel, self.bias = nnx.Param(weight), nnx.Param(bias)
        self.stride, self.padding = stride, padding
        self.precision: Any = "highest"

    def __call__(self, x: jax.Array) -> jax.Array:
        space = "DHW"[-(x.ndim - 2) :]
        numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
        y = jax.lax.conv_general_dilated(
            x, self.kernel[...], self.stride, self.padding, dimension_numbers=numbers,
            precision=self.precision,
        )  # fmt: skip
        return y + self.bias[...].reshape((1,) * (x.ndim - 1) + (-1,))


def conv(module: Any, **changes: Any) -> Conv:
    """The port of a convolution of PyTorch."""
    settings = {
        "weight": kernel(module.weight),
        "bias": array(module.bias),
        "stride": module.stride,
        "padding": [(p, p) for p in module.padding],
    }
    return Conv(**{**settings, **changes})


def both(theirs: Any, ours: Any, wrong: Any) -> dict[str, Any]:
    """A case of functions alone."""
    return {
        "torch": lambda: torch_of(lambda self, x: theirs(x)),
        "port": lambda module, bad: nnx_of(lambda self, x: (wrong if bad else ours)(x)),
    }


def drawn(name: str, even: bool = False) -> tuple[int, ...]:
    """Shape of an image whose two sizes, which differ, are drawn by the name: even, or odd."""
    size = np.random.default_rng(list(name.encode())).choice(np.arange(3, 9), 2, replace=False)
    return (2, 3, *(2 * int(n) + (not even) for n in size))


# Convolutions

case(name="same_padding_of_a_strided_convolution", source="google/flax#963", cause="padding",
     torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, stride=2, padding=1), shape=(2, 3, 16, 16),
     port=lambda m, bad: conv(m, padding="SAME") if bad else conv(m))  # fmt: skip
case(name="kernel_reshaped_to_fit", source="tensorflow/tensorflow#30044", cause="weights_layout",
     torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, padding=1),
     port=lambda m, bad: conv(m, weight=array(m.weight).reshape(3, 3, CHANNELS, 6))
     if bad else conv(m))  # fmt: skip
case(name="height_and_width_of_the_kernel_swapped", source="helper2424/resnet10#2",
     cause="weights_layout", torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, padding=1),
     port=lambda m, bad: conv(m, weight=kernel(m.weight).swapaxes(0, 1))
     if bad else conv(m))  # fmt: skip
case(name="kernel_flipped", source="apache/tvm#9336", cause="weights_layout",
     torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, padding=1),
     port=lambda m, bad: conv(m, weight=kernel(m.weight)[::-1, ::-1])
     if bad else conv(m))  # fmt: skip


class Transposed(nnx.Module):
    """A transposed convolution, with PyTorch's padding or that of `SAME`."""

    def __init__(self, module: Any, flipped: bool = True, same: bool = False) -> None:
        self.kernel = nnx.Param(jnp.moveaxis(array(module.weight), (0, 1), (-2, -1)))
        self.bias, self.stride = nnx.Param(array(module.bias)), module.stride
        k, p, more = module.kernel_size[0], module.padding[0], module.output_padding[0]
        self.flipped = flipped
        self.padding = [(k - 1, k - 1 - p)] * 2 if same else [(k - 1 - p, k - 1 - p + more)] * 2

    def __call__(self, x: jax.Array) -> jax.Array:
        weight = self.kernel[...][::-1, ::-1] if self.flipped else self.kernel[...]
        y = jax.lax.conv_general_dilated(
            x, weight, (1, 1), self.padding, lhs_dilation=self.stride,
            dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest",
        )  # fmt: skip
        return y + self.bias[...].reshape(1, 1, 1, -1)


class FlippedConv(Conv):
    """It flips what its weights have right."""

    def __call__(self, x: jax.Array) -> jax.Array:
        right = Conv(self.kernel[...][::-1], self.bias[...], self.stride, self.padding)
        return right(x)


case(name="kernel_flipped_where_it_is_used", source="scipy.signal.convolve", shape=drawn("flip"),
     cause="weights_layout", torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, padding=1),
     port=lambda m, bad: (FlippedConv if bad else Conv)(
         kernel(m.weight), array(m.bias), m.stride, [(1, 1), (1, 1)]))  # fmt: skip
case(name="transposed_kernel_not_flipped", source="google/flax#1872", cause="weights_layout",
     torch=lambda: torch.nn.ConvTranspose2d(CHANNELS, 6, 3, 2, 1, 1), shape=drawn("transposed"),
     port=lambda m, bad: Transposed(m, flipped=not bad))  # fmt: skip
case(name="transposed_with_same_padding", source="jax.lax.conv_transpose", cause="padding",
     torch=lambda: torch.nn.ConvTranspose2d(CHANNELS, 6, 3, 2, 1, 1), shape=drawn("same"),
     port=lambda m, bad: Transposed(m, same=bad))  # fmt: skip
case(name="never_loaded", source="huggingface/diffusers#4840", cause="weights_missing",
     torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, padding=1),
     port=lambda m, bad: conv(m, weight=jax.random.normal(jax.random.key(0), (3, 3, CHANNELS, 6)))
     if bad else conv(m))  # fmt: skip


def _low_precision(module: Any, bad: bool) -> nnx.Module:
    right = conv(module)
    if not bad:
        return right

    class Low(Conv):
        def __call__(self, x: jax.Array) -> jax.Array:
            low = nnx.clone(right)
            low.kernel[...] = jax.lax.reduce_precision(low.kernel[...], 8, 7)
            return low(jax.lax.reduce_precision(x, 8, 7))

    return Low(kernel(module.weight), array(module.bias), right.stride, right.padding)


case(name="products_in_bfloat16", source="jax-ml/jax#1856", cause="matmul_precision",
     torch=lambda: torch.nn.Conv2d(CHANNELS, 6, 3, padding=1), port=_low_precision)  # fmt: skip


class TorchCausal(torch.nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (2, 0)))


case(name="pads_behind_instead_of_in_front", source="lucidrains/magvit2-pytorch#27",
     cause="causal_side", torch=lambda: TorchCausal(CHANNELS, 6, 3), shape=(2, 3, 19),
     port=lambda m, bad: conv(m, padding=[(0, 2)] if bad else [(2, 0)]))  # fmt: skip


# Norms


class Norm(nnx.Module):
    """A layer or group norm with everything open to mistakes."""

    def __init__(self, module: Any, groups: int | None, eps: float, one_pass: bool = False) -> None:
        self.scale, self.bias = nnx.Param(array(module.weight)), nnx.Param(array(module.bias))
        self.groups, self.eps, self.one_pass = groups, eps, one_pass

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.groups is None:
            y, axes = x, (-1,)
        else:
            y, axes = x.reshape(x.shape[0], -1, self.groups, x.shape[-1] // self.groups), (1, 3)
        mean = y.mean(axes, keepdims=True)
        if self.one_pass:
            variance = (y * y).mean(axes, keepdims=True) - mean * mean
        else:
            variance = ((y - mean) ** 2).mean(axes, keepdims=True)
        y = ((y - mean) * jax.lax.rsqrt(variance + self.eps)).reshape(x.shape)
        return y * self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,)) + self.bias[...].reshape(
            (1,) * (x.ndim - 1) + (-1,)
        )


class TorchFar(torch.nn.GroupNorm):
    """A group norm of values far from zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 300)


class NormFar(Norm):
    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x + 300)


case(name="size_given_where_epsilon_stands", source="google/flax#2195", cause="epsilon",
     path="middle.norm",
     torch=lambda: torch_of(lambda self, x: self.norm(x.movedim(1, -1)).movedim(-1, 1),
                              norm=torch.nn.LayerNorm(CHANNELS)),
     port=lambda m, bad: nnx_of(lambda self, x: self.norm(x), norm=Norm(
         m.norm, None, float(CHANNELS) if bad else m.norm.eps)))  # fmt: skip
case(name="other_number_of_groups", source="mindspore-lab/mindone#169", cause="norm_axes",
     torch=lambda: torch.nn.GroupNorm(4, CHANNELS),
     port=lambda m, bad: Norm(m, 2 if bad else 4, m.eps))  # fmt: skip
case(name="variance_in_one_pass", source="ml-explore/mlx#2238", cause="norm_variance",
     torch=lambda: TorchFar(4, CHANNELS),
     port=lambda m, bad: NormFar(m, 4, m.eps, one_pass=bad))  # fmt: skip


class BatchNorm(nnx.Module):
    def __init__(self, module: Any, of_batch: bool, unbiased: bool = False) -> None:
        self.scale, self.bias = nnx.Param(array(module.weight)), nnx.Param(array(module.bias))
        self.mean = nnx.BatchStat(array(module.running_mean))
        self.var = nnx.BatchStat(array(module.running_var))
        self.of_batch, self.unbiased, self.eps = of_batch, unbiased, module.eps

    def __call__(self, x: jax.Array) -> jax.Array:
        mean, var = self.mean[...], self.var[...]
        if self.of_batch:
            axes = tuple(range(x.ndim - 1))
            mean, var = x.mean(axes), x.var(axes)
        if self.unbiased:
            n = x.size // x.shape[-1]
            var = var * n / (n - 1)
        shape = (1,) * (x.ndim - 1) + (-1,)
        mean, var, scale, bias = (
            v.reshape(shape) for v in (mean, var, self.scale[...], self.bias[...])
        )
        return (x - mean) * jax.lax.rsqrt(var + self.eps) * scale + bias


case(name="statistics_of_the_batch", source="scverse/scvi-tools#2309", cause="norm_buffers",
     torch=lambda: torch.nn.BatchNorm2d(CHANNELS), port=BatchNorm)  # fmt: skip

case(name="unbiased_stored_variance", source="pytorch/pytorch#1410", cause="norm_buffers",
     torch=lambda: torch.nn.BatchNorm2d(CHANNELS), shape=drawn("unbiased"),
     port=lambda m, bad: BatchNorm(m, False, unbiased=bad))  # fmt: skip

# Activations

case(name="exact_gelu_for_quick_gelu", source="mlfoundations/open_clip#771", cause="activation",
     **both(F.gelu, lambda x: jax.nn.gelu(x, approximate=False),
            lambda x: x * jax.nn.sigmoid(1.702 * x)))  # fmt: skip
case(name="slope_of_leaky_relu", source="jinyu121/DW2TF#2", cause="activation",
     **both(F.leaky_relu, jax.nn.leaky_relu, lambda x: jax.nn.leaky_relu(x, 0.2)))  # fmt: skip

# Resizing, pooling, order


def _corners(x: jax.Array) -> jax.Array:
    for axis in (1, 2):
        at = jnp.linspace(0, x.shape[axis] - 1, 2 * x.shape[axis])
        low = jnp.clip(at.astype(int), 0, x.shape[axis] - 2)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        x = jnp.take(x, low, axis) * (1 - part) + jnp.take(x, low + 1, axis) * part
    return x


case(name="corners_aligned", source="jax-ml/jax#11206", cause="resize",
     **both(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
            lambda x: jax.image.resize(x, (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]),
                                       "bilinear"), _corners))  # fmt: skip


def _nearest(x: jax.Array, exact: bool) -> jax.Array:
    for axis, new in ((1, 20), (2, 25)):
        shift = 0.5 if exact else 0.0
        index = np.floor((np.arange(new) + shift) * x.shape[axis] / new).astype(int)
        x = jnp.take(x, index, axis)
    return x


case(name="pixel_centres_in_nearest", source="pytorch/pytorch#34808", cause="resize",
     **both(lambda x: F.interpolate(x, size=(20, 25)), lambda x: _nearest(x, False),
            lambda x: _nearest(x, True)))  # fmt: skip
case(name="border_of_an_average", source="google/flax#2448", cause="pooling",
     **both(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda x: nnx.avg_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)), count_include_pad=False),
            lambda x: nnx.avg_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))))  # fmt: skip


def _max_pool(x: jax.Array, pads: Any, fill: float = -jnp.inf) -> jax.Array:
    pairs = pads if isinstance(pads, str) else [(0, 0), *pads, (0, 0)]
    return jax.lax.reduce_window(x, fill, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pairs)


ONE = [(1, 1)] * 2
case(name="pool_with_same_padding", source="a ResNet's stem", cause="padding",
     shape=(*drawn("pool", even=True)[:3], 15),
     **both(lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: _max_pool(x, ONE),
            lambda x: _max_pool(x, "SAME")))  # fmt: skip
case(name="zeros_around_a_maximum", source="keras-team/keras-applications#121", cause="padding",
     shape=drawn("zeros"),
     **both(lambda x: F.max_pool2d(x - 1, 3, 2, 1), lambda x: _max_pool(x - 1, ONE),
            lambda x: _max_pool(jnp.pad(x - 1, ((0, 0), *ONE, (0, 0))), "VALID")))  # fmt: skip
case(name="no_padding_of_a_mean", source="a pool in front of a head", cause="padding",
     shape=drawn("mean"),
     **both(lambda x: F.avg_pool2d(x, 3, 2, 1).mean((2, 3)),
            lambda x: nnx.avg_pool(x, (3, 3), (2, 2), ONE).mean((1, 2)),
            lambda x: nnx.avg_pool(x, (3, 3), (2, 2)).mean((1, 2))))  # fmt: skip
case(name="rounding_down_of_a_pool", source="SqueezeNet's ceil_mode", cause="pooling",
     shape=drawn("ceil", even=True),
     **both(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True).mean((2, 3)),
            lambda x: _max_pool(x, [(0, 1)] * 2).mean((1, 2)),
            lambda x: _max_pool(x, "VALID").mean((1, 2))))  # fmt: skip


def _bins(x: jax.Array, bins: int, right: bool) -> jax.Array:
    for axis in (1, 2):
        size = x.shape[axis]
        step, x = size // bins, jnp.moveaxis(x, axis, 0)
        ends = [(i * size // bins, -(-(i + 1) * size // bins)) if right
                else (i * step, (i + 1) * step) for i in range(bins)]  # fmt: skip
        x = jnp.moveaxis(jnp.stack([x[low:high].mean(0) for low, high in ends]), 0, axis)
    return x


case(name="bins_of_an_adaptive_pool", source="VGG's head of another size", cause="pooling",
     shape=drawn("bins"),
     **both(lambda x: F.adaptive_avg_pool2d(x, (5, 5)), lambda x: _bins(x, 5, True),
            lambda x: _bins(x, 5, False)))  # fmt: skip
case(name="tiled_for_repeated", source="numpy.repeat and torch.Tensor.repeat",
     cause="reshape_order", shape=drawn("tile"),
     **both(lambda x: x.repeat_interleave(3, 1), lambda x: jnp.repeat(x, 3, -1),
            lambda x: jnp.tile(x, (1, 1, 1, 3))))  # fmt: skip
case(name="repeated_for_tiled", source="numpy.repeat and torch.Tensor.repeat",
     cause="reshape_order", shape=drawn("repeat"),
     **both(lambda x: x.repeat(1, 3, 1, 1), lambda x: jnp.tile(x, (1, 1, 1, 3)),
            lambda x: jnp.repeat(x, 3, -1)))  # fmt: skip


def _heads(x: torch.Tensor) -> torch.Tensor:
    x = x[:, :, None].expand(-1, -1, 3, -1, -1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


case(name="keys_tiled_over_groups", source="huggingface/transformers' repeat_kv",
     cause="reshape_order", shape=drawn("heads"),
     **both(_heads, lambda x: jnp.repeat(x, 3, -1),
            lambda x: jnp.tile(x, (1, 1, 1, 3))))  # fmt: skip


def _scores(x: torch.Tensor) -> torch.Tensor:
    q, k = x.unflatten(1, (2, 2, 2)).unbind(1)
    return (q * k.sigmoid()).flatten(1, 2)


def _port_scores(x: jax.Array, axis: int) -> jax.Array:
    q, k = jnp.moveaxis(x.reshape(*x.shape[:-1], 2, 2, 2), axis, 0)
    return (q * jax.nn.sigmoid(k)).reshape(*q.shape[:-2], -1)


case(name="heads_before_queries_and_keys", source="a packed projection", cause="reshape_order",
     shape=drawn("packed"),
     **both(_scores, lambda x: _port_scores(x, -3), lambda x: _port_scores(x, -2)))  # fmt: skip


def _modulated(parts: Any, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Any:
    shift, scale, gate, shift2, scale2, gate2 = (parts[i] for i in order)
    return gate * (shift + 2 * scale) + gate2 * (shift2 - 3 * scale2)


def _six(name: str, order: tuple[int, ...]) -> dict[str, Any]:
    return {"shape": drawn(name), **both(
        lambda x: _modulated(x[:, :6].chunk(6, 1)),
        lambda x: _modulated(jnp.split(x[..., :6], 6, -1)),
        lambda x: _modulated(jnp.split(x[..., :6], 6, -1), order))}  # fmt: skip


case(name="shift_and_scale_exchanged", source="the norms of DiT and SD3", cause="reshape_order",
     **_six("both", (1, 0, 2, 4, 3, 5)))  # fmt: skip
case(name="two_gates_exchanged", source="the norms of DiT and SD3", cause="reshape_order",
     **_six("gates", (0, 1, 5, 3, 4, 2)))  # fmt: skip


def _three(parts: Any, sigmoid: Any, order: tuple[int, ...] = (0, 1, 2)) -> Any:
    query, key, value = (parts[i] for i in order)
    return (query + 2 * key) * sigmoid(value)


case(name="queries_keys_and_values_in_other_order", source="a packed projection",
     cause="reshape_order", shape=drawn("three"),
     **both(lambda x: _three(x[:, :6].chunk(3, 1), torch.sigmoid),
            lambda x: _three(jnp.split(x[..., :6], 3, -1), jax.nn.sigmoid),
            lambda x: _three(jnp.split(x[..., :6], 3, -1), jax.nn.sigmoid,
                             (1, 2, 0))))  # fmt: skip
case(name="other_half_as_the_gate", source="flax.nnx.glu and its like", cause="reshape_order",
     shape=drawn("glu"),
     **both(lambda x: F.glu(x, 1), lambda x: nnx.glu(x),
            lambda x: x[..., 4:] * jax.nn.sigmoid(x[..., :4])))  # fmt: skip
case(name="last_frame_kept_twice", source="a cache of two frames", cause="cache",
     shape=(1, 3, 4, 5, 6),
     **both(lambda x: x[:, :, -2:].clone(), lambda x: x[:, -2:],
            lambda x: jnp.repeat(x[:, -1:], 2, 1)))  # fmt: skip


def _to_depth(x: jax.Array, right: bool) -> jax.Array:
    n, h, w, c = x.shape
    x = x.reshape(n, h // 2, 2, w // 2, 2, c)
    x = x.transpose(0, 1, 3, 5, 2, 4) if right else x.transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // 2, w // 2, 4 * c)


case(name="order_of_space_to_depth", source="tensorflow space_to_depth", cause="reshape_order",
     shape=drawn("depth", even=True),
     **both(lambda x: F.pixel_unshuffle(x, 2), lambda x: _to_depth(x, True),
            lambda x: _to_depth(x, False)))  # fmt: skip


def _to_space(x: jax.Array, right: bool) -> jax.Array:
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, c // 4, 2, 2) if right else x.reshape(n, h, w, 2, 2, c // 4)
    x = x.transpose(0, 1, 4, 2, 5, 3) if right else x.transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, 2 * h, 2 * w, c // 4)


case(name="order_of_depth_to_space", source="tensorflow depth_to_space", cause="reshape_order",
     **both(lambda x: F.pixel_shuffle(x, 2), lambda x: _to_space(x, True),
            lambda x: _to_space(x, False)))  # fmt: skip


def _torch_pooled(x: torch.Tensor) -> torch.Tensor:
    b, c, t, h, w = x.shape
    y = x.permute(0, 3, 4, 1, 2).reshape(b * h * w, c, t)
    y = F.avg_pool1d(y, kernel_size=2, stride=2)
    return y.reshape(b, h, w, c, t // 2).permute(0, 3, 4, 1, 2)


def _pooled(x: jax.Array, right: bool) -> jax.Array:
    b, t, h, w, c = x.shape
    if right:
        return x.reshape(b, t // 2, 2, h, w, c).mean(2)
    mixed = x.reshape(b * h * w, t, c).reshape(b * h * w, t // 2, 2, c).mean(2)
    return mixed.reshape(b, t // 2, h, w, c)


case(name="pooling_without_the_transpose", source="an earlier port of CogVideoX",
     cause="reshape_order", shape=(1, 3, 4, 5, 6),
     **both(_torch_pooled, lambda x: _pooled(x, True), lambda x: _pooled(x, False)))  # fmt: skip

# Gates


class Recurrent(nnx.Module):
    """One step of a GRU, or an LSTM over all; `order` says where the gates are taken from."""

    def __init__(self, module: Any, order: tuple[int, ...]) -> None:
        for name, weight in module.named_parameters():
            setattr(self, name, nnx.Param(array(weight)))
        self.order = order

    def gates(self, x: jax.Array, h: jax.Array, end: str) -> tuple[list[jax.Array], ...]:
        found = []
        for kind, z in (("ih", x), ("hh", h)):
            weight, bias = (getattr(self, f"{part}_{kind}{end}") for part in ("weight", "bias"))
            y = jnp.matmul(z, weight[...].T, precision="highest") + bias[...][None]
            parts = jnp.split(y, len(self.order), -1)
            found.append([parts[i] for i in self.order])
        return tuple(found)


class Gru(Recurrent):
    def __call__(self, x: jax.Array) -> jax.Array:
        (r, z, n), (hr, hz, hn) = self.gates(x, jnp.zeros((len(x), 6)), "")
        r, z = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
        return (1 - z) * jnp.tanh(n + r * hn)


class Lstm(Recurrent):
    def __call__(self, x: jax.Array) -> Any:
        h = c = jnp.zeros((len(x), 6))
        found = []
        for t in range(x.shape[1]):
            i, f, g, o = (a + b for a, b in zip(*self.gates(x[:, t], h, "_l0"), strict=True))
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            found.append(h)
        return jnp.stack(found, 1), (h[None], c[None])


case(name="gates_of_keras_gru", source="keras.layers.GRU", cause="weights_layout",
     path="middle.cell",
     torch=lambda: torch_of(lambda self, x: self.cell(x.mean((2, 3))),
                            cell=torch.nn.GRUCell(CHANNELS, 6)),
     port=lambda m, bad: nnx_of(lambda self, x: self.cell(x.mean((1, 2))),
                                cell=Gru(m.cell, (1, 0, 2) if bad else (0, 1, 2))))  # fmt: skip
case(name="gates_of_onnx_lstm", source="the LSTM of ONNX", cause="weights_layout",
     path="middle.lstm", shape=(2, 3, 5, 7),
     torch=lambda: torch_of(lambda self, x: self.lstm(x.mean(2).movedim(1, -1))[0].mean(1),
                            lstm=torch.nn.LSTM(CHANNELS, 6, batch_first=True)),
     port=lambda m, bad: nnx_of(lambda self, x: self.lstm(x.mean(1))[0].mean(1), lstm=Lstm(
         m.lstm, (0, 3, 1, 2) if bad else (0, 1, 2, 3))))  # fmt: skip

# Glue


def _block(glue: Any) -> Callable[[Any, Any], Any]:
    return lambda self, x: glue(x, self.conv(x))


def _torch_block(glue: Any) -> Callable[[], torch.nn.Module]:
    return lambda: torch_of(_block(glue), conv=torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1))


def _port_block(right: Any, wrong: Any) -> Callable[[Any, bool], nnx.Module]:
    return lambda m, bad: nnx_of(_block(wrong if bad else right), conv=conv(m.conv))


case(name="addition_left_out", source="james-see/ltx-video-mac#34", cause="glue",
     torch=_torch_block(lambda x, y: x + y),
     port=_port_block(lambda x, y: x + y, lambda x, y: y))  # fmt: skip
case(name="factor_left_out", source="madebyollin/taesd#35", cause="scale_or_offset",
     torch=_torch_block(lambda x, y: y * 0.18215),
     port=_port_block(lambda x, y: y * 0.18215, lambda x, y: y))  # fmt: skip
case(name="clamp_left_out", source="vanderschaarlab/synthcity#331", cause="clamp",
     torch=_torch_block(lambda x, y: torch.clamp(y, -0.5, 0.5)),
     port=_port_block(lambda x, y: jnp.clip(y, -0.5, 0.5), lambda x, y: y))  # fmt: skip
case(name="softmax_over_another_axis", source="an attention over (batch, channel, row, column)",
     cause="norm_axes",
     **both(lambda x: torch.softmax(x, 1), lambda x: jax.nn.softmax(x, -1),
            lambda x: jax.nn.softmax(x, 1)))  # fmt: skip
