"""Attention of every position to every other.

Source: torch 2.13, `scaled_dot_product_attention`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim
from jaxtyping import Array, Float

from jaxvae.layers.rounding import narrow, wide_dtype

BLOCK = 256 * 2**20
"""Bytes of scores at a time. Above it bands of queries take turns."""


@partial(jax.jit, static_argnums=3)
def attend(
    query: Float[Array, "b n heads d"],
    key: Float[Array, "b m heads d"],
    value: Float[Array, "b m heads d"],
    precision: lax.Precision,
) -> Float[Array, "b n heads d"]:
    """Return softmax(query key / sqrt(d)) value, without a mask or dropout.

    Scores and sums are float32 (float64 for float64). As in PyTorch's own kernel the powers are
    rounded to the dtype of the input before they are multiplied, and divided by their sum after.
    """
    wide = wide_dtype(query.dtype)

    def band(query: Float[Array, "b band heads d"]) -> Float[Array, "b band heads d"]:
        scores = jnp.einsum(
            "bqhd,bkhd->bhqk", query, key, precision=precision, preferred_element_type=wide
        )
        scores = scores * query.shape[-1] ** -0.5
        powers = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
        total = jnp.moveaxis(jnp.sum(powers, axis=-1, keepdims=True), 1, 2)
        output = jnp.einsum(
            "bhqk,bkhd->bqhd",
            narrow(powers, value.dtype),
            value,
            precision=precision,
            preferred_element_type=wide,
        )
        return narrow(output / total, query.dtype)

    batch, count, heads, channels = query.shape
    known = 1 if is_symbolic_dim(batch) else batch  # of a program for any batch
    row = known * heads * key.shape[1] * jnp.dtype(wide).itemsize
    turns = min(-(-count * row // BLOCK), count)
    if turns <= 1:
        return band(query)
    size = -(-count // turns)
    padded = jnp.pad(query, ((0, 0), (0, turns * size - count), (0, 0), (0, 0)))
    bands = jnp.moveaxis(padded.reshape(batch, turns, size, heads, channels), 1, 0)
    # A gradient computes the scores of a band again: kept, they would be as many as all at once.
    outputs = jnp.moveaxis(lax.map(jax.checkpoint(band), bands), 0, 1)
    return outputs.reshape(batch, turns * size, heads, channels)[:, :count]
