"""Low-precision arithmetic as PyTorch does it: compute in float32, round once.

Source: torch 2.13, whose bfloat16 and float16 kernels compute in float32 (`opmath_type`) and round
what they return. float32 and float64 pass through unchanged.
"""

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
    kind: jnp.finfo = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    return lax.reduce_precision(x, kind.nexp, kind.nmant).astype(dtype)


@jax.jit
def add(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return a + b, rounded once."""
    return narrow(widen(a) + widen(b), jnp.result_type(a, b))


@jax.jit
def multiply_add(
    x: Float[Array, "..."], scale: Float[Array, "..."], shift: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return x * scale + shift as two operations: the product is rounded, then the sum."""
    product = narrow(widen(x) * widen(scale), jnp.result_type(x, scale))
    total: Array = add(product, shift)
    return total
