"""Low-precision arithmetic as PyTorch does it: compute in float32, round once.

Source: torch 2.13, whose bfloat16 and float16 kernels compute in float32 (`opmath_type`) and round
what they return. float32 and float64 pass through unchanged.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def wide_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Return the dtype to compute in: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


def widen(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Convert to the dtype to compute in, exactly."""
    return x.astype(wide_dtype(x.dtype))


def narrow(x: Float[Array, "..."], dtype: DTypeLike) -> Float[Array, "..."]:
    """Round to `dtype`, to nearest even.

    A plain conversion does not always round: inside one program XLA drops a conversion to bfloat16
    and back, as it may keep excess precision. This one stays.
    """
    if x.dtype == dtype:
        return x
    if dtype == jnp.float16:
        # `reduce_precision` makes numbers below 6e-5 zero, which float16 has.
        small: Array = lax.optimization_barrier(x.astype(dtype))
        return small
    kind: jnp.finfo = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    return lax.reduce_precision(x, kind.nexp, kind.nmant).astype(dtype)


def rounded(operation: Callable[..., Array], *operands: Float[Array, "..."]) -> Array:
    """Return what one operation of PyTorch's gives: computed wide, rounded once."""
    return narrow(operation(*map(widen, operands)), jnp.result_type(*operands))


@jax.jit
def add(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return a + b, rounded once."""
    return rounded(jnp.add, a, b)


@jax.jit
def multiply_add(
    x: Float[Array, "..."], scale: Float[Array, "..."], shift: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return x * scale + shift as two operations: the product is rounded, then the sum."""
    total: Array = add(rounded(jnp.multiply, x, scale), shift)
    return total


@jax.jit
def clamp(x: Float[Array, "..."], low: float, high: float) -> Float[Array, "..."]:
    """Return x cut off at both ends, where as in PyTorch its gradient goes through.

    `jnp.clip` halves it there.
    """
    lowest, highest = (jnp.asarray(end, x.dtype) for end in (low, high))
    return jnp.where(x < lowest, lowest, jnp.where(x > highest, highest, x))
