"""BERT of transformers; the port uses Flax's own attention and hands a boolean mask down."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from transformers import BertConfig, BertModel

from tests.ports.loading import give, randomise, words

WIDTH, HEADS, LAYERS = 24, 3, 2


class Post(nnx.Module):
    """A layer with its norms behind the sums."""

    def __init__(self, rngs):
        self.mha = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.ln_att = nnx.LayerNorm(WIDTH, epsilon=1e-12, use_fast_variance=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 40, rngs=rngs)
        self.down = nnx.Linear(40, WIDTH, rngs=rngs)
        self.ln_mlp = nnx.LayerNorm(WIDTH, epsilon=1e-12, use_fast_variance=False, rngs=rngs)

    def __call__(self, x, seen):
        x = self.ln_att(x + self.mha(x, mask=seen))
        return self.ln_mlp(x + self.down(nnx.gelu(self.up(x), approximate=False)))


class Bert(nnx.Module):
    """Tables, layers, and the pooled first token."""

    def __init__(self, rngs):
        self.words = nnx.Embed(50, WIDTH, rngs=rngs)
        self.places = nnx.Embed(20, WIDTH, rngs=rngs)
        self.kinds = nnx.Embed(2, WIDTH, rngs=rngs)
        self.ln = nnx.LayerNorm(WIDTH, epsilon=1e-12, use_fast_variance=False, rngs=rngs)
        self.stack = nnx.List([Post(rngs) for _ in range(LAYERS)])
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, tokens, padding):
        x = self.words(tokens) + self.kinds(jnp.zeros_like(tokens))
        x = self.ln(x + self.places(jnp.arange(tokens.shape[1]))[None])
        seen = padding[:, None, None, :] > 0
        for layer in self.stack:
            x = layer(x, seen)
        return x, jnp.tanh(self.first(x[:, 0]))


def make():
    """(reference, port, arguments)."""
    config = BertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=40,
        max_position_embeddings=20,
    )
    ref, port = randomise(BertModel(config)), Bert(nnx.Rngs(0))
    tables = ref.embeddings
    give(port.words, tables.word_embeddings)
    give(port.places, tables.position_embeddings)
    give(port.kinds, tables.token_type_embeddings)
    give(port.ln, tables.LayerNorm)
    give(port.first, ref.pooler.dense)
    for layer, one in zip(port.stack, ref.encoder.layer, strict=True):
        give(layer.mha.query, one.attention.self.query)
        give(layer.mha.key, one.attention.self.key)
        give(layer.mha.value, one.attention.self.value)
        give(layer.mha.out, one.attention.output.dense)
        give(layer.ln_att, one.attention.output.LayerNorm)
        give(layer.up, one.intermediate.dense)
        give(layer.down, one.output.dense)
        give(layer.ln_mlp, one.output.LayerNorm)
    seen = np.ones((2, 7), np.int64)
    seen[1, 5:] = 0
    return ref, port, (words(2, 7), seen)
