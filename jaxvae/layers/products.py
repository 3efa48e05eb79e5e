"""The products of a convolution, accumulated in float32 and not rounded.

A bfloat16 convolution that returns bfloat16 would be rounded before the bias is added, and each
part of a sum of them by itself. PyTorch's is rounded once, at the end.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxvae.layers.rounding import wide_dtype

Triple = tuple[int, int, int]
_How = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[str, str, str], lax.Precision]
"""Stride, padding, dilation, layout and precision."""

How = tuple[Triple, Triple, Triple, lax.Precision]
"""Stride, padding, dilation and precision of a convolution in (t, h, w)."""


def multiply(
    x: Float[Array, "n *positions din"], kernel: Float[Array, "*taps din dout"], how: _How
) -> Float[Array, "n *positions2 dout"]:
    """Convolve with zero padding; the result is float32, or float64 for float64.

    Operands of bfloat16 or float16 stay what they are: accelerators multiply them at full speed.
    """
    if x.dtype == wide_dtype(x.dtype):
        return _convolve(x, kernel, how, None)
    output: Array = _widening(x, kernel, how)
    return output


def sum_over_time(
    x: Float[Array, "b t h w din"], kernel: Float[Array, "kt kh kw din dout"], how: How
) -> Float[Array, "b t2 h2 w2 dout"]:
    """Convolve as a sum of `kt` 2-D convolutions, with time in the batch."""
    stride, padding, dilation, precision = how
    layout = ("NHWC", "HWIO", "NHWC")
    plane = (stride[1:], padding[1:], dilation[1:], layout, precision)
    if padding[0]:
        x = jnp.pad(x, ((0, 0), (padding[0], padding[0]), (0, 0), (0, 0), (0, 0)))
    batch, length, height, width, channels = x.shape
    count = (length - dilation[0] * (kernel.shape[0] - 1) - 1) // stride[0] + 1
    total = None
    for tap in range(kernel.shape[0]):
        start = tap * dilation[0]
        frames = x[:, start : start + (count - 1) * stride[0] + 1 : stride[0]]
        frames = frames.reshape(batch * count, height, width, channels)
        part = multiply(frames, kernel[tap], plane)
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(batch, count, *total.shape[1:])


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _widening(x: Array, kernel: Array, how: _How) -> Array:
    """Convolve, accumulating and returning float32 (float64 for float64)."""
    return _convolve(x, kernel, how, wide_dtype(x.dtype))


@_widening.defjvp
def _widening_jvp(
    how: _How, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    # JAX cannot transpose a convolution whose result is wider than its operands. Tangents are those
    # of the narrow one, so gradients are bfloat16 convolutions, as in PyTorch.
    (x, kernel), (dx, dkernel) = primals, tangents
    wide = wide_dtype(x.dtype)
    tangent = _convolve(dx, kernel, how, None).astype(wide)
    tangent = tangent + _convolve(x, dkernel, how, None).astype(wide)
    return _convolve(x, kernel, how, wide), tangent


def _convolve(x: Array, kernel: Array, how: _How, result: DTypeLike | None) -> Array:
    stride, padding, dilation, layout, precision = how
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        [(p, p) for p in padding],
        rhs_dilation=dilation,
        dimension_numbers=layout,
        precision=precision,
        preferred_element_type=result,
    )
