"""Attention as a function of arrays."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxvae.layers.rounding import narrow, wide_dtype


@partial(jax.jit, static_argnames="precision")
def attend(
    query: Float[Array, "b n heads d"],
    key: Float[Array, "b m heads d"],
    value: Float[Array, "b m heads d"],
    precision: lax.Precision,
) -> Float[Array, "b n heads d"]:
    """temporary"""
    wide = wide_dtype(query.dtype)
    scores = jnp.einsum(
        "bnhd,bmhd->bhnm", query, key, precision=precision, preferred_element_type=wide
    )
    weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-1)
    out = jnp.einsum(
        "bhnm,bmhd->bnhd",
        weights,
        value.astype(wide),
        precision=precision,
        preferred_element_type=wide,
    )
    return narrow(out, query.dtype)
