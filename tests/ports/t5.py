"""T5 of transformers, encoder and decoder; the port's layers are functions over nested parameters,
with one embedding for all.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from transformers import T5Config, T5Model

from tests.ports.loading import of, randomise, words

WIDTH, HEADS, SIZE, LAYERS = 24, 3, 8, 2


def rms(p, x):
    """Norm without a mean."""
    return p * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def buckets(gap, both):
    """The bucket of each distance, half of them on a logarithmic scale."""
    count, start = (16, jnp.where(gap > 0, 16, 0)) if both else (32, jnp.zeros_like(gap))
    gap = jnp.abs(gap) if both else -jnp.minimum(gap, 0)
    exact = count // 2
    large = jnp.log(jnp.maximum(gap, 1) / exact) / math.log(128 / exact) * (count - exact)
    far = jnp.minimum(exact + large.astype(int), count - 1)
    return start + jnp.where(gap < exact, gap, far)


def attend(p, x, memory, bias):
    """Attention without a scale; `bias` is added to the scores."""

    def heads(kernel, given):
        return (given @ kernel).reshape(*given.shape[:2], HEADS, SIZE)

    q, k, v = heads(p["q"], x), heads(p["k"], memory), heads(p["v"], memory)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(*x.shape[:2], -1) @ p["o"]


def stack(p, x, memory=None):
    """All layers of the encoder, or with `memory` of the decoder."""
    at = jnp.arange(x.shape[1])
    gap = at[None] - at[:, None]
    bias = p["distance"][buckets(gap, memory is None)].transpose(2, 0, 1)[None]
    if memory is not None:
        bias = jnp.where(gap > 0, -jnp.inf, bias)
    for layer in p["layers"]:
        normed = rms(layer["ln_self"], x)
        x = x + attend(layer["self"], normed, normed, bias)
        if memory is not None:
            x = x + attend(layer["cross"], rms(layer["ln_cross"], x), memory, 0.0)
        h = jax.nn.relu(rms(layer["ln_mlp"], x) @ layer["wi"])
        x = x + h @ layer["wo"]
    return rms(p["ln"], x)


class T5(nnx.Module):
    """Last hidden states of decoder and encoder."""

    def __init__(self, weights):
        for name, value in weights.items():
            setattr(self, name, held(value))

    def __call__(self, ids, asked):
        table, encoder, decoder = map(plain, (self.table, self.encoder, self.decoder))
        memory = stack(encoder, table[ids])
        return stack(decoder, table[asked], memory), memory


def held(value):
    """Nested parameters as Flax keeps them."""
    if isinstance(value, dict):
        return nnx.Dict({name: held(one) for name, one in value.items()})
    return nnx.List(map(held, value)) if isinstance(value, list) else nnx.Param(value)


def plain(value):
    """Nested arrays again."""
    if isinstance(value, nnx.Param):
        return value[...]
    if isinstance(value, nnx.List):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in value.items()}


class Pair(T5Model):
    """T5 whose first two arguments are what both sides read."""

    def forward(self, input_ids, decoder_input_ids):
        out = super().forward(input_ids=input_ids, decoder_input_ids=decoder_input_ids)
        return out.last_hidden_state, out.encoder_last_hidden_state


def _attention(module):
    return {x: of(getattr(module, x).weight).T for x in "qkvo"}


def _stack(module):
    layers = []
    for block in module.block:
        *attentions, mlp = block.layer
        layer = {"self": _attention(attentions[0].SelfAttention)}
        layer["ln_self"] = of(attentions[0].layer_norm.weight)
        if len(attentions) == 2:
            layer["cross"] = _attention(attentions[1].EncDecAttention)
            layer["ln_cross"] = of(attentions[1].layer_norm.weight)
        layer["wi"] = of(mlp.DenseReluDense.wi.weight).T
        layer["wo"] = of(mlp.DenseReluDense.wo.weight).T
        layer["ln_mlp"] = of(mlp.layer_norm.weight)
        layers.append(layer)
    first = module.block[0].layer[0].SelfAttention
    distance = of(first.relative_attention_bias.weight)
    return {"layers": layers, "ln": of(module.final_layer_norm.weight), "distance": distance}


def make():
    """(reference, port, arguments)."""
    config = T5Config(
        vocab_size=50,
        d_model=WIDTH,
        d_kv=SIZE,
        d_ff=40,
        num_layers=LAYERS,
        num_heads=HEADS,
        decoder_start_token_id=0,
    )
    ref = randomise(Pair(config))
    parts = {"encoder": _stack(ref.encoder), "decoder": _stack(ref.decoder)}
    port = T5({"table": of(ref.shared.weight), **parts})
    return ref, port, (words(2, 9), words(2, 6, seed=1))
