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
    def __init__(self, module: Any, of_batch: bool) -> None:
        self.scale, self.bias = nnx.Param(array(module.weight)), nnx.Param(array(module.bias))
        self.mean = nnx.BatchStat(array(module.running_mean))
        self.var = nnx.BatchStat(array(module.running_var))
        self.of_batch, self.eps = of_batch, module.eps

    def __call__(self, x: jax.Array) -> jax.Array:
        mean, var = self.mean[...], self.var[...]
        if self.of_batch:
            axes = tuple(range(x.ndim - 1))
            mean, var = x.mean(axes), x.var(axes)
        shape = (1,) * (x.ndim - 1) + (-1,)
        mean, var, scale, bias = (
            v.reshape(shape) for v in (mean, var, self.scale[...], self.bias[...])
        )
        return (x - mean) * jax.lax.rsqrt(var + self.eps) * scale + bias


case(name="statistics_of_the_batch", source="scverse/scvi-tools#2309", cause="norm_buffers",
     torch=lambda: torch.nn.BatchNorm2d(CHANNELS), port=BatchNorm)  # fmt: skip

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
