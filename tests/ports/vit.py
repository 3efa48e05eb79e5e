"""ViT of transformers; the port's layers are stacked and scanned."""

import jax
import jax.numpy as jnp
from flax import nnx
from transformers import ViTConfig, ViTModel

from tests.ports.loading import give, noise, of, randomise

WIDTH, HEADS, LAYERS = 24, 3, 3


class Pre(nnx.Module):
    """A layer with its norms before, and one kernel for queries, keys and values."""

    def __init__(self, rngs):
        self.n1 = nnx.LayerNorm(WIDTH, epsilon=1e-12, use_fast_variance=False, rngs=rngs)
        self.qkv = nnx.LinearGeneral(WIDTH, (3, HEADS, WIDTH // HEADS), rngs=rngs)
        self.proj = nnx.LinearGeneral((HEADS, WIDTH // HEADS), WIDTH, axis=(-2, -1), rngs=rngs)
        self.n2 = nnx.LayerNorm(WIDTH, epsilon=1e-12, use_fast_variance=False, rngs=rngs)
        self.mlp = nnx.List([nnx.Linear(WIDTH, 40, rngs=rngs), nnx.Linear(40, WIDTH, rngs=rngs)])

    def __call__(self, x):
        q, k, v = jnp.moveaxis(self.qkv(self.n1(x)), 2, 0)
        x = x + self.proj(jax.nn.dot_product_attention(q, k, v))
        return x + self.mlp[1](nnx.gelu(self.mlp[0](self.n2(x)), approximate=False))


class Vit(nnx.Module):
    """Patches by a convolution, a token before them, positions, layers in a scan."""

    def __init__(self, rngs):
        self.patchify = nnx.Conv(3, WIDTH, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.cls = nnx.Param(jnp.zeros((1, 1, WIDTH)))
        self.pos = nnx.Param(jnp.zeros((1, 10, WIDTH)))
        made = nnx.vmap(Pre, in_axes=0, out_axes=0)
        self.layers = made(nnx.Rngs(0).split(LAYERS))
        self.ln = nnx.LayerNorm(WIDTH, epsilon=1e-12, use_fast_variance=False, rngs=rngs)
        self.pool = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, image):
        x = self.patchify(image)
        x = x.reshape(x.shape[0], -1, WIDTH)
        first = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, WIDTH))
        x = jnp.concatenate([first, x], 1) + self.pos[...]
        x = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
            x, self.layers
        )
        x = self.ln(x)
        return {"tokens": x, "pooled": jnp.tanh(self.pool(x[:, 0]))}


def make():
    """(reference, port, arguments)."""
    config = ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=40,
        image_size=12,
        patch_size=4,
    )
    ref, port = randomise(ViTModel(config)), Vit(nnx.Rngs(0))
    give(port.patchify, ref.embeddings.patch_embeddings.projection)
    port.cls[...] = of(ref.embeddings.cls_token)
    port.pos[...] = of(ref.embeddings.position_embeddings)
    give(port.ln, ref.layernorm)
    give(port.pool, ref.pooler.dense)
    stack, layers = port.layers, ref.layers
    for name, part in (("n1", "layernorm_before"), ("n2", "layernorm_after")):
        norms = [getattr(layer, part) for layer in layers]
        getattr(stack, name).scale[...] = jnp.stack([of(norm.weight) for norm in norms])
        getattr(stack, name).bias[...] = jnp.stack([of(norm.bias) for norm in norms])
    for at, part in enumerate(("fc1", "fc2")):
        linears = [getattr(layer.mlp, part) for layer in layers]
        stack.mlp[at].kernel[...] = jnp.stack([of(linear.weight).T for linear in linears])
        stack.mlp[at].bias[...] = jnp.stack([of(linear.bias) for linear in linears])
    threes = [[getattr(one.attention, f"{x}_proj") for x in "qkv"] for one in layers]
    kernels = [jnp.concatenate([of(x.weight).T for x in three], 1) for three in threes]
    biases = [jnp.concatenate([of(x.bias) for x in three]) for three in threes]
    stack.qkv.kernel[...] = jnp.stack(kernels).reshape(stack.qkv.kernel.shape)
    stack.qkv.bias[...] = jnp.stack(biases).reshape(stack.qkv.bias.shape)
    merges = [layer.attention.o_proj for layer in layers]
    merged = jnp.stack([of(merge.weight).T for merge in merges])
    stack.proj.kernel[...] = merged.reshape(stack.proj.kernel.shape)
    stack.proj.bias[...] = jnp.stack([of(merge.bias) for merge in merges])
    return ref, port, (noise(2, 3, 12, 12),)
