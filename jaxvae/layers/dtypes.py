"""Number formats that a model computes in and keeps its parameters in.

A parameter is rounded to the dtype of the computation where it is used. So float32 parameters under
bfloat16 give, bit for bit, what bfloat16 parameters give, and are there for training, where small
updates must not be lost. bfloat16 parameters under float32 take half of the memory.
"""

import warnings

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

_FORMATS = ("float32", "bfloat16", "float16", "float64")


def check_dtypes(
    dtype: DTypeLike, param_dtype: DTypeLike | None = None
) -> tuple[jnp.dtype, jnp.dtype]:
    """Return the dtypes of computation and parameters; warn if it is computed in float16.

    Raises ValueError for other formats and None, and for float64 while JAX has no 64-bit types.
    """
    if dtype is None:  # to NumPy it would be float64
        raise ValueError("dtype: expected a number format such as float32, found None")
    try:
        chosen = jnp.dtype(dtype)
        kept = chosen if param_dtype is None else jnp.dtype(param_dtype)
    except TypeError:
        raise ValueError(
            f"dtype: expected one of {', '.join(_FORMATS)}, found {dtype!r} and {param_dtype!r}"
        ) from None
    for name, one in (("dtype", chosen), ("param_dtype", kept)):
        if one.name not in _FORMATS:
            raise ValueError(f"{name}: expected one of {', '.join(_FORMATS)}, found {one.name}")
        if one == jnp.float64 and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                f"{name}: float64 needs 64-bit types, which JAX has off; call"
                " jax.config.update('jax_enable_x64', True) first"
            )
    if chosen == jnp.float16:
        warnings.warn(
            "dtype: float16 holds nothing above 65504, and what was not trained in it, as"
            " CogVideoX and SDXL, gives NaN and black frames; use bfloat16 or float32",
            stacklevel=2,
        )
    return chosen, kept
