"""Convolutions of 3 taps a direction with fewer products: Winograd's F(2, 3) along each of them.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). Two
outputs of 3 taps each are 4 products of sums instead of 6 products, in every direction anew: 64
for the 8 outputs of a 3x3x3 kernel instead of 216. What is left are large matrix products, which
XLA's CPU backend does at full speed, and additions. Rounding errors are like those of the same
convolution written as a sum, at most 1.7 times as large (docs/performance.md).
"""

import math
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jaxtyping import Array, Float

from jaxvae.layers.products import Triple, sum_over_time

BLOCK = 32 * 2**20
"""Bytes of transformed input at a time, four (two directions) or eight times as many as the input's
own: what a large cache holds. Above it frames take turns, and where one pair of frames has more,
bands of rows."""

_KERNEL = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])

_AXES = (1, 2, 3)
"""Time, height and width of an array."""

CHANNELS = 32
"""Channels, in and out, from which fewer products outweigh the additions."""

FRAME = 64
"""Pixels up to which the kernel is larger than what it is applied to, and transforming it costs
more than it saves; XLA's own 3-D convolution is used there."""


def applies(
    x: Float[Array, "b t h w din"],
    kernel: Float[Array, "kt kh kw din dout"],
    stride: Triple,
    dilation: Triple,
    precision: lax.Precision,
) -> bool:
    """Return True for such a convolution that is large enough to gain by it.

    Not for coarse products: a transformed input is a sum of eight numbers, and loses more than they
    when it is rounded.
    """
    *taps, din, dout = kernel.shape
    return (
        tuple(taps) in {(3, 3, 3), (1, 3, 3)}
        and stride == dilation == (1, 1, 1)
        and precision is lax.Precision.HIGHEST
        and min(din, dout) >= CHANNELS
        and x.shape[2] * x.shape[3] > FRAME
    )


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def convolve(
    x: Float[Array, "b t h w din"], kernel: Float[Array, "kt 3 3 din dout"], padding: Triple
) -> Float[Array, "b t2 h2 w2 dout"]:
    """Convolve with stride 1 and zero padding. `kt` is 3 or 1."""
    time_taps, din = kernel.shape[0], kernel.shape[-2]
    sizes = [
        size + 2 * pad - taps + 1
        for size, pad, taps in zip(x.shape[1:4], padding, (time_taps, 3, 3), strict=True)
    ]
    axes = _AXES if time_taps == 3 else _AXES[1:]
    # Outputs come in pairs along such an axis; the input grows by what the last pair reads.
    tiles = [-(-n // 2) if axis in axes else n for axis, n in zip(_AXES, sizes, strict=True)]
    batch = 1 if is_symbolic_dim(x.shape[0]) else x.shape[0]  # of a program for any batch
    row = 4 ** len(axes) * batch * tiles[2] * din * x.dtype.itemsize
    bands = -(-tiles[1] // max(BLOCK // row, 1))
    rows = -(-tiles[1] // bands)
    tiles[1] = bands * rows
    needed = [2 * n + 2 if axis in axes else n for axis, n in zip(_AXES, tiles, strict=True)]
    pads = [
        (pad, n - size - pad) for n, size, pad in zip(needed, x.shape[1:4], padding, strict=True)
    ]
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    kernels = _transform_kernel(kernel, axes)
    fitting = [n for n in range(1, tiles[0] + 1) if tiles[0] % n == 0 and n * rows * row <= BLOCK]
    frames = max(fitting, default=1)
    step = 2 if time_taps == 3 else 1

    def block(start: tuple[Array | int, Array | int]) -> Array:
        size = (x.shape[0], frames * step + time_taps - 1, 2 * rows + 2, *x.shape[3:])
        part = lax.dynamic_slice(x, (0, *start, 0, 0), size)
        return _convolve_tiles(part, kernels, axes, (frames, rows, tiles[2]))

    turns = tiles[0] // frames
    if turns * bands == 1:
        output = block((0, 0))
    else:
        starts = np.mgrid[:turns, :bands].reshape(2, -1) * [[frames * step], [2 * rows]]
        blocks = lax.map(block, tuple(jnp.asarray(starts, jnp.int32)))
        blocks = blocks.reshape(turns, bands, *blocks.shape[1:])
        output = blocks.transpose(2, 0, 3, 1, 4, 5, 6)
        output = output.reshape(x.shape[0], turns * frames * step, 2 * tiles[1], *output.shape[-2:])
    return output[:, : sizes[0], : sizes[1], : sizes[2]]


@convolve.defjvp
def _convolve_jvp(
    padding: Triple, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    # Gradients are convolutions as they are written: what is transposed keeps no transformed input,
    # which is four times (two directions) or eight times (three) as large as the input.
    (x, kernel), (dx, dkernel) = primals, tangents
    how = ((1, 1, 1), padding, (1, 1, 1), lax.Precision.HIGHEST)
    tangent = sum_over_time(dx, kernel, how) + sum_over_time(x, dkernel, how)
    return convolve(x, kernel, padding), tangent


def _convolve_tiles(
    x: Float[Array, "b t h w din"],
    kernels: list[Float[Array, "n din dout"]],
    axes: tuple[int, ...],
    tiles: tuple[int, int, int],
) -> Float[Array, "b t2 h2 w2 dout"]:
    """Convolve what gives `tiles` pairs (single ones along an axis that is not in `axes`).

    The first axis makes four products of a quarter of the work, which run side by side: XLA does
    all matrices of one product on one core.
    """
    outer, *inner = axes
    din, dout = kernels[0].shape[-2:]
    parts = []
    for part, kernel in zip(_transform(x, outer, tiles[outer - 1]), kernels, strict=True):
        for leading, axis in enumerate(inner):
            part = jnp.stack(_transform(part, axis + leading, tiles[axis - 1]))
        products = lax.dot_general(
            part.reshape(len(kernel), -1, din),
            kernel,
            (((2,), (1,)), ((0,), (0,))),
            precision=lax.Precision.HIGHEST,
        )
        products = products.reshape(*part.shape[:-1], dout)
        for leading, axis in reversed(list(enumerate(inner))):
            products = jnp.stack(_pairs(products), leading + axis + 1)
        parts.append(products)
    output = jnp.stack(_pairs(parts), outer + 1)
    sizes = [2 * n if axis in axes else n for axis, n in zip(_AXES, tiles, strict=True)]
    return output.reshape(x.shape[0], *sizes, dout)


def _transform(x: Array, axis: int, tiles: int) -> list[Array]:
    a, b, c, d = (lax.slice_in_dim(x, i, i + 2 * tiles - 1, 2, axis) for i in range(4))
    return [a - c, b + c, c - b, b - d]


def _transform_kernel(
    kernel: Float[Array, "kt 3 3 din dout"], axes: tuple[int, ...]
) -> list[Float[Array, "n din dout"]]:
    # As one product: it takes a third of the time that sums of slices take.
    *taps, din, dout = kernel.shape
    count = len(axes)
    matrix = reduce(np.kron, [_KERNEL] * count).reshape(*[4] * count, -1)
    # the first axis, then the others from the last on, as `_convolve_tiles` stacks them
    matrix = matrix.transpose(0, *range(count - 1, 0, -1), count).reshape(4**count, -1)
    parts = jnp.matmul(
        jnp.asarray(matrix, kernel.dtype),
        kernel.reshape(math.prod(taps), din * dout),
        precision=lax.Precision.HIGHEST,
    )
    return list(parts.reshape(4, -1, din, dout))


def _pairs(products: Array | list[Array]) -> list[Array]:
    a, b, c, d = products
    return [a + b + c, b - c - d]
