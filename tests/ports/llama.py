"""Llama of transformers with a cache, prefilled and read once; the port has fused projections and
functions for rotary embedding and attention.
"""

import jax
import jax.numpy as jnp
import torch
from flax import nnx
from transformers import LlamaConfig, LlamaForCausalLM

from tests.ports.loading import give, of, randomise, words

WIDTH, HEADS, GROUPS, SIZE, LAYERS = 32, 4, 2, 8, 2


class Generating(torch.nn.Module):
    """Logits of all words but the last, then of that one from the cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        start = self.model(ids[:, :-1], use_cache=True)
        after = self.model(ids[:, -1:], cache=start.cache, use_cache=True)
        return start.logits, after.logits


def rotate(x, at):
    """Turn pairs (i, i + half) of the last axis of (b, t, heads, size)."""
    half = x.shape[-1] // 2
    angle = at[:, None] / 10000.0 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    one, two = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


class Attend(nnx.Module):
    """Grouped queries, one kernel for all three, and the heads joined by an Einsum."""

    def __init__(self, rngs):
        self.qkv = nnx.Linear(WIDTH, (HEADS + 2 * GROUPS) * SIZE, use_bias=False, rngs=rngs)
        self.merge = nnx.Einsum("bthd,hdm->btm", (HEADS, SIZE, WIDTH), rngs=rngs)

    def __call__(self, x, at, memory):
        heads = self.qkv(x).reshape(*x.shape[:2], -1, SIZE)
        q, k, v = jnp.split(heads, [HEADS, HEADS + GROUPS], axis=2)
        q, k = rotate(q, at), rotate(k, at)
        if memory is not None:
            k, v = (jnp.concatenate(pair, 1) for pair in zip(memory, (k, v), strict=True))
        seen = jnp.arange(k.shape[1])[None] <= at[:, None]
        return self.merge(jax.nn.dot_product_attention(q, k, v, mask=seen[None, None])), (k, v)


class Layer(nnx.Module):
    """Norm before attention, norm before the gated product."""

    def __init__(self, rngs):
        self.pre = nnx.RMSNorm(WIDTH, epsilon=1e-6, use_fast_variance=False, rngs=rngs)
        self.att = Attend(rngs)
        self.mid = nnx.RMSNorm(WIDTH, epsilon=1e-6, use_fast_variance=False, rngs=rngs)
        self.w13 = nnx.Linear(WIDTH, 2 * 48, use_bias=False, rngs=rngs)
        self.w2 = nnx.Linear(48, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x, at, memory):
        h, memory = self.att(self.pre(x), at, memory)
        x = x + h
        gate, up = jnp.split(self.w13(self.mid(x)), 2, -1)
        return x + self.w2(nnx.silu(gate) * up), memory


class Llama(nnx.Module):
    """Tied to nothing: a head of its own."""

    def __init__(self, rngs):
        self.tok = nnx.Embed(50, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.out_norm = nnx.RMSNorm(WIDTH, epsilon=1e-6, use_fast_variance=False, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, 50, use_bias=False, rngs=rngs)

    def step(self, ids, at, memories):
        """Logits of some words at these positions, and what is kept of them."""
        x, kept = self.tok(ids), []
        for block, memory in zip(self.blocks, memories, strict=True):
            x, memory = block(x, at, memory)
            kept.append(memory)
        return self.logits(self.out_norm(x)), kept

    def __call__(self, ids):
        last = ids.shape[1] - 1
        start, kept = self.step(ids[:, :-1], jnp.arange(last), [None] * LAYERS)
        return start, self.step(ids[:, -1:], jnp.array([last]), kept)[0]


def make():
    """(reference, port, arguments)."""
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        intermediate_size=48,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    ref, port = randomise(Generating(LlamaForCausalLM(config))), Llama(nnx.Rngs(0))
    model = ref.model.model
    give(port.tok, model.embed_tokens)
    give(port.out_norm, model.norm)
    give(port.logits, ref.model.lm_head)
    for block, one in zip(port.blocks, model.layers, strict=True):
        projections = (one.self_attn.q_proj, one.self_attn.k_proj, one.self_attn.v_proj)
        block.att.qkv.kernel[...] = jnp.concatenate([of(p.weight).T for p in projections], 1)
        merge = of(one.self_attn.o_proj.weight).T
        block.att.merge.kernel[...] = merge.reshape(HEADS, SIZE, WIDTH)
        pair = (one.mlp.gate_proj, one.mlp.up_proj)
        block.w13.kernel[...] = jnp.concatenate([of(p.weight).T for p in pair], 1)
        give(block.w2, one.mlp.down_proj)
        give(block.pre, one.input_layernorm)
        give(block.mid, one.post_attention_layernorm)
    return ref, port, (words(2, 7),)
