"""Attention over the positions of an image.

Source: diffusers 0.42.1, `attention_processor.py`.
"""

from typing import Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import Dropout
from jaxvae.layers.attention import attend
from jaxvae.layers.convolution import Build, Linear, linear
from jaxvae.layers.norms import GroupNorm
from jaxvae.layers.rounding import add
from jaxvae.layers.scopes import Module

Image = Float[Array, "b h w c"]


class Attention(Module):
    """A norm, attention of one head and a projection beside a shortcut.

    Source: diffusers 0.42.1, `Attention` with `AttnProcessor2_0`, as the blocks of `AutoencoderKL`
    have it: a group norm, biases, no mask. With `fused_projections` query, key and value are one
    product, as of `FusedAttnProcessor2_0`; their parameters stay three.
    """

    def __init__(
        self, query_dim: int, norm_num_groups: int = 32, eps: float = 1e-5, **build: Unpack[Build]
    ):
        self.fused_projections = False
        self.group_norm = GroupNorm(norm_num_groups, query_dim, eps, dtype=build["dtype"])
        self.to_q = Linear(query_dim, query_dim, **build)
        self.to_k = Linear(query_dim, query_dim, **build)
        self.to_v = Linear(query_dim, query_dim, **build)
        drop = Dropout(0.0, rngs=build["rngs"])
        self.to_out = nnx.List([Linear(query_dim, query_dim, **build), drop])

    def __call__(self, hidden_states: Image) -> Image:
        """Let every position attend to all."""
        batch, height, width, channels = hidden_states.shape
        x = self.group_norm(hidden_states.reshape(batch, height * width, channels))
        projections = (self.to_q, self.to_k, self.to_v)
        precision = self.to_q.precision
        if self.fused_projections:
            kernel = jnp.concatenate([one.kernel[...] for one in projections], axis=1)
            bias = jnp.concatenate([one.bias[...] for one in projections])
            parts = jnp.split(linear(x, kernel, bias, precision), 3, axis=-1)
        else:
            parts = [one(x) for one in projections]
        query, key, value = (part[:, :, None] for part in parts)
        x = attend(query, key, value, precision)[:, :, 0]
        for step in self.to_out:
            x = step(x)
        output: Array = add(x.reshape(hidden_states.shape), hidden_states)
        return output
