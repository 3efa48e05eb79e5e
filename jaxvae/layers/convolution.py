"""Convolutions and dense layers, channels-last, with PyTorch's padding and stride.

Source: torch 2.13. Attribute and argument names are those of PyTorch, so that module paths are
equal on both sides. Parameters are `kernel` (kt, kh, kw, in, out) or (in, out), and `bias`.

What a layer computes is a compiled function of arrays, as `jax.numpy`'s own functions are: outside
of a caller's `jit` it is one program for each shape, and inside it is part of the caller's.

A layer computes in the dtype of its input: parameters of another dtype are rounded to it where they
are used. In bfloat16 and float16 products and sums are float32, and the result is rounded once.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.export import is_symbolic_dim
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxvae.layers import winograd
from jaxvae.layers.products import How, Triple, multiply, sum_over_time
from jaxvae.layers.rounding import narrow, wide_dtype, widen
from jaxvae.layers.scopes import Module

Cache = dict[str, Any]
"""Frames passed from one chunk to the next: nested dicts with diffusers' keys."""

Precision = Literal["default", "high", "highest"] | lax.Precision

LARGE = 2**30
"""Bytes that a convolution reads or writes, above which it takes a frame at a time on a TPU."""


class Build(TypedDict):
    """Arguments of every constructor besides PyTorch's own: `dtype` is that of the parameters.

    `precision` is that of the products.
    """

    rngs: nnx.Rngs
    dtype: DTypeLike
    precision: Precision


def as_precision(precision: Precision) -> lax.Precision:
    """Return the enum member for a name such as `"highest"`."""
    if isinstance(precision, lax.Precision):
        return precision
    try:
        return lax.Precision[precision.upper()]
    except KeyError:
        raise ValueError(
            f"precision: expected 'default', 'high' or 'highest', found {precision!r}"
        ) from None


def as_triple(value: int | Triple) -> Triple:
    """Return a number thrice, or three numbers as they are."""
    return (value, value, value) if isinstance(value, int) else value


def _uniform_param(shape: tuple[int, ...], fan_in: int, build: Build) -> nnx.Param[Array]:
    # torch's default for convolutions and linear layers (kaiming_uniform with a = sqrt(5)) comes
    # to U(-1/sqrt(fan_in), 1/sqrt(fan_in)), for the weight and for the bias.
    bound = 1 / math.sqrt(fan_in)
    key = build["rngs"].params()
    return nnx.Param(jax.random.uniform(key, shape, build["dtype"], -bound, bound))


def convolve(
    x: Float[Array, "b t h w din"],
    kernel: Float[Array, "kt kh kw din dout"],
    bias: Float[Array, " dout"],
    *,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    precision: lax.Precision = lax.Precision.HIGHEST,
) -> Float[Array, "b t2 h2 w2 dout"]:
    """Convolve in (t, h, w) with zero padding, and add the bias, as suits the platform.

    The platform is the one that the program is compiled for, which need not be the one that it is
    traced on. docs/performance.md has what each choice was measured to give.
    """
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(
            x.shape[1:4], kernel.shape[:3], stride, padding, dilation, strict=True
        )
    ]
    if min(sizes) < 1:
        raise ValueError(
            f"convolution: an input of (t, h, w) = {x.shape[1:4]} with padding {padding} is smaller"
            f" than the kernel {kernel.shape[:3]} with dilation {dilation}; give a larger input"
        )
    output: Array = _convolve(x, kernel, bias, (stride, padding, dilation, precision))
    return output


@partial(jax.jit, static_argnums=3)
def _convolve(x: Array, kernel: Array, bias: Array, how: How) -> Array:
    kernel, bias = kernel.astype(x.dtype), widen(bias.astype(x.dtype))
    output: Array = lax.platform_dependent(
        x,
        kernel,
        bias,
        cpu=partial(_rounded, products=_products_on_cpu, how=how),
        tpu=partial(_frames_in_turn, how=how),
        default=partial(_rounded, how=how),
    )
    return output


def _rounded(
    x: Array,
    kernel: Array,
    bias: Array,
    how: How,
    products: Callable[[Array, Array, How], Array] | None = None,
) -> Array:
    total = (products or _products)(x, kernel, how)
    return narrow(total + bias.reshape(1, 1, 1, 1, -1), x.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _frames_in_turn(x: Array, kernel: Array, bias: Array, how: How) -> Array:
    """Convolve, and a frame at a time what reads or writes more than `LARGE` bytes.

    A TPU's compiler lays an input out anew for a convolution, and once more padded.
    """
    stride, padding, dilation, precision = how
    if any(map(is_symbolic_dim, x.shape)):
        return _rounded(x, kernel, bias, how)
    if padding[0]:
        x = jnp.pad(x, ((0, 0), (padding[0], padding[0]), (0, 0), (0, 0), (0, 0)))
        how = (stride, (0, *padding[1:]), dilation, precision)
    whole = jax.eval_shape(partial(_rounded, how=how), x, kernel, bias)
    if max(x.size, whole.size) * x.dtype.itemsize <= LARGE:
        return _rounded(x, kernel, bias, how)
    if whole.shape[1] == 1:
        # Images lie one after the other. The compiler would put them next to the channels, also
        # where they are 10 frames again later, which take the memory of 16 there.
        in_order: Array = with_layout_constraint(
            _rounded(x, kernel, bias, how), Layout((0, 1, 2, 3, 4))
        )
        return in_order
    read = dilation[0] * (kernel.shape[0] - 1) + 1

    def convolved(i: Array, output: Array) -> Array:
        part = lax.dynamic_slice_in_dim(x, i * stride[0], read, axis=1)
        frame = _rounded(part, kernel, bias, how)
        return lax.dynamic_update_slice_in_dim(output, frame, i, axis=1)

    start = jnp.zeros(whole.shape, whole.dtype)
    filled: Array = lax.fori_loop(0, whole.shape[1], convolved, start)
    return filled


@_frames_in_turn.defjvp
def _frames_in_turn_jvp(
    how: How, primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    # Gradients are those of the convolution as it is written: a loop's would be added up frame by
    # frame, and rounded each time.
    _, tangent = jax.jvp(partial(_rounded, how=how), primals, tangents)
    return _frames_in_turn(*primals, how), tangent


def _products(x: Array, kernel: Array, how: How) -> Array:
    if kernel.shape[0] == 1:
        return sum_over_time(x, kernel, how)
    stride, padding, dilation, precision = how
    layout = ("NDHWC", "DHWIO", "NDHWC")
    return multiply(x, kernel, (stride, padding, dilation, layout, precision))


def _products_on_cpu(x: Array, kernel: Array, how: How) -> Array:
    # A CPU has no bfloat16 convolution to lose, and float32 operands let the gradients of the parts
    # of a sum be added in float32 as well.
    x, kernel = widen(x), widen(kernel)
    stride, padding, dilation, precision = how
    if winograd.applies(x, kernel, stride, dilation, precision):
        output: Array = winograd.convolve(x, kernel, padding)
        return output
    if x.shape[2] * x.shape[3] <= winograd.FRAME:
        return _products(x, kernel, how)
    return sum_over_time(x, kernel, how)


class Conv3d(Module):
    """3-D convolution with symmetric zero padding.

    Source: diffusers 0.42.1, `CogVideoXSafeConv3d`. That class cuts inputs above 2 GiB into parts
    along time, with bit-identical results, for cuDNN's sake; XLA needs no cutting.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        padding: int | Triple = 0,
        dilation: int | Triple = 1,
        **build: Unpack[Build],
    ):
        size = as_triple(kernel_size)
        fan_in = in_channels * math.prod(size)
        self.kernel = _uniform_param((*size, in_channels, out_channels), fan_in, build)
        self.bias = _uniform_param((out_channels,), fan_in, build)
        self.stride = as_triple(stride)
        self.padding = as_triple(padding)
        self.dilation = as_triple(dilation)
        self.precision = as_precision(build["precision"])

    def __call__(self, input: Float[Array, "b t h w din"]) -> Float[Array, "b t2 h2 w2 dout"]:
        """Convolve and add the bias."""
        return self.convolve_with(self.kernel[...], input)

    def convolve_with(
        self, kernel: Float[Array, "kt kh kw din dout"], input: Float[Array, "b t h w din"]
    ) -> Float[Array, "b t2 h2 w2 dout"]:
        """Convolve with this kernel, the layer's own or some taps of it, and add the bias."""
        return convolve(
            input,
            kernel,
            self.bias[...],
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            precision=self.precision,
        )


class Conv2d(Module):
    """2-D convolution of single frames.

    Source: torch 2.13, `nn.Conv2d`, as the resampling blocks use it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        **build: Unpack[Build],
    ):
        fan_in = in_channels * kernel_size**2
        shape = (kernel_size, kernel_size, in_channels, out_channels)
        self.kernel = _uniform_param(shape, fan_in, build)
        self.bias = _uniform_param((out_channels,), fan_in, build)
        self.stride = stride
        self.padding = padding
        self.precision = as_precision(build["precision"])

    def __call__(self, input: Float[Array, "n h w din"]) -> Float[Array, "n h2 w2 dout"]:
        """Convolve and add the bias."""
        output = convolve(
            input[:, None],
            self.kernel[...][None],
            self.bias[...],
            stride=(1, self.stride, self.stride),
            padding=(0, self.padding, self.padding),
            precision=self.precision,
        )
        return output[:, 0]


class Linear(Module):
    """Dense layer over the last axis.

    Source: torch 2.13, `nn.Linear`.
    """

    def __init__(self, in_features: int, out_features: int, **build: Unpack[Build]):
        self.kernel = _uniform_param((in_features, out_features), in_features, build)
        self.bias = _uniform_param((out_features,), in_features, build)
        self.precision = as_precision(build["precision"])

    def __call__(self, input: Float[Array, "*b din"]) -> Float[Array, "*b dout"]:
        """Multiply by the kernel and add the bias."""
        kernel, bias = self.kernel[...], self.bias[...]
        output: Array = linear(input, kernel, bias, self.precision)
        return output


@partial(jax.jit, static_argnums=3)
def linear(x: Array, kernel: Array, bias: Array, precision: lax.Precision) -> Array:
    """Multiply the last axis by a kernel (in, out) and add the bias."""
    kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
    wide = wide_dtype(x.dtype)
    product = jnp.matmul(x, kernel, precision=precision, preferred_element_type=wide)
    return narrow(product + widen(bias).reshape((1,) * (x.ndim - 1) + (-1,)), x.dtype)
