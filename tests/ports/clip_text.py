"""CLIP's text tower of transformers; the port is Linen, with its lists' own names."""

import jax
import jax.numpy as jnp
from flax import linen, nnx
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from tests.ports.loading import of, randomise, words

WIDTH, HEADS, LAYERS = 24, 3, 2


class Attention(linen.Module):
    """Causal attention of several heads."""

    def setup(self):
        self.q, self.k, self.v, self.o = (linen.Dense(WIDTH) for _ in range(4))

    def __call__(self, x, mask):
        q, k, v = (layer(x).reshape(*x.shape[:2], HEADS, -1) for layer in (self.q, self.k, self.v))
        return self.o(jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(x.shape))


class Block(linen.Module):
    """Norm, attention, norm, two products with a quick GELU between."""

    def setup(self):
        self.norms = [linen.LayerNorm(epsilon=1e-5, use_fast_variance=False) for _ in range(2)]
        self.attn = Attention()
        self.dense = [linen.Dense(40), linen.Dense(WIDTH)]

    def __call__(self, x, mask):
        x = x + self.attn(self.norms[0](x), mask)
        h = self.dense[0](self.norms[1](x))
        return x + self.dense[1](h * jax.nn.sigmoid(1.702 * h))


class TextTower(linen.Module):
    """Embeddings, blocks, the vector at the last word."""

    def setup(self):
        self.wte, self.wpe = linen.Embed(50, WIDTH), linen.Embed(16, WIDTH)
        self.resblocks = [Block() for _ in range(LAYERS)]
        self.ln_final = linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)
        self.proj = linen.Dense(12, use_bias=False)

    def __call__(self, ids):
        n = ids.shape[1]
        x = self.wte(ids) + self.wpe(jnp.arange(n))
        mask = jnp.tril(jnp.ones((n, n), bool))[None, None]
        for block in self.resblocks:
            x = block(x, mask)
        x = self.ln_final(x)
        end = jnp.argmax(ids == 49, -1)
        return self.proj(x[jnp.arange(len(ids)), end]), x


def dense(module):
    """Variables of a Dense."""
    found = {"kernel": of(module.weight).T}
    return found if module.bias is None else {**found, "bias": of(module.bias)}


def norm(module):
    """Variables of a LayerNorm."""
    return {"scale": of(module.weight), "bias": of(module.bias)}


def make():
    """(reference, port, arguments)."""
    config = CLIPTextConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        intermediate_size=40,
        projection_dim=12,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=16,
        eos_token_id=49,
        bos_token_id=1,
        pad_token_id=1,
    )
    ref = randomise(CLIPTextModelWithProjection(config))
    tower = ref.text_model
    params = {
        "wte": {"embedding": of(tower.embeddings.token_embedding.weight)},
        "wpe": {"embedding": of(tower.embeddings.position_embedding.weight)},
        "ln_final": norm(tower.final_layer_norm),
        "proj": dense(ref.text_projection),
    }
    for i, layer in enumerate(tower.encoder.layers):
        attn = layer.self_attn
        params[f"resblocks_{i}"] = {
            "norms_0": norm(layer.layer_norm1),
            "norms_1": norm(layer.layer_norm2),
            "dense_0": dense(layer.mlp.fc1),
            "dense_1": dense(layer.mlp.fc2),
            "attn": {
                **{x: dense(getattr(attn, f"{x}_proj")) for x in "qkv"},
                "o": dense(attn.out_proj),
            },
        }
    ids = words(2, 9, vocabulary=48)
    ids[0, 6], ids[1, 8] = 49, 49
    port = nnx.bridge.ToNNX(TextTower(), rngs=nnx.Rngs(0)).lazy_init(jnp.asarray(ids))
    for name, value in params.items():
        port_of(port, name, value)
    return ref, port, (ids,)


def port_of(port, name, value):
    """Set the variables of one part of the bridge's module."""
    held = getattr(port, name)

    def put(into, given):
        for key, array in given.items():
            if isinstance(array, dict):
                put(into[key], array)
            else:
                into[key][...] = array

    put(held, value)
