"""GPT-2 of transformers with a tied head; the port splits the reference's fused projection, and
multiplies by its embedding.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from transformers import GPT2Config, GPT2LMHeadModel

from tests.ports.loading import give, of, randomise, words

WIDTH, HEADS, LAYERS = 24, 3, 2


class Layer(nnx.Module):
    """Attention and products in one module, queries, keys and values by three."""

    def __init__(self, rngs):
        options = {"epsilon": 1e-5, "use_fast_variance": False, "rngs": rngs}
        self.norm_a, self.norm_b = (nnx.LayerNorm(WIDTH, **options) for _ in range(2))
        shape = (HEADS, WIDTH // HEADS)
        self.query, self.key, self.value = (
            nnx.LinearGeneral(WIDTH, shape, rngs=rngs) for _ in range(3)
        )
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 48, rngs=rngs), nnx.Linear(48, WIDTH, rngs=rngs)

    def __call__(self, x):
        h = self.norm_a(x)
        q, k, v = self.query(h), self.key(h), self.value(h)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm_b(x)), approximate=True))


class Gpt(nnx.Module):
    """Words, places, layers, the table again."""

    def __init__(self, rngs):
        self.table, self.position = nnx.Embed(50, WIDTH, rngs=rngs), nnx.Embed(16, WIDTH, rngs=rngs)
        for i in range(LAYERS):
            setattr(self, f"layer{i}", Layer(rngs))
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)

    def __call__(self, ids):
        x = self.table(ids) + self.position(jnp.arange(ids.shape[1]))
        for i in range(LAYERS):
            x = getattr(self, f"layer{i}")(x)
        return self.table.attend(self.norm(x))


def make():
    """(reference, port, arguments)."""
    config = GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=48,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    ref, port = randomise(GPT2LMHeadModel(config)), Gpt(nnx.Rngs(0))
    body = ref.transformer
    give(port.table, body.wte)
    give(port.position, body.wpe)
    give(port.norm, body.ln_f)
    for i, one in enumerate(body.h):
        layer = getattr(port, f"layer{i}")
        give(layer.norm_a, one.ln_1)
        give(layer.norm_b, one.ln_2)
        kernels = jnp.split(of(one.attn.c_attn.weight), 3, 1)
        biases = jnp.split(of(one.attn.c_attn.bias), 3)
        for part, kernel, bias in zip(
            (layer.query, layer.key, layer.value), kernels, biases, strict=True
        ):
            part.kernel[...] = kernel.reshape(part.kernel.shape)
            part.bias[...] = bias.reshape(part.bias.shape)
        pairs = ((layer.out, one.attn.c_proj), (layer.up, one.mlp.c_fc))
        for linear, module in (*pairs, (layer.down, one.mlp.c_proj)):
            linear.kernel[...] = of(module.weight)
            linear.bias[...] = of(module.bias)
    return ref, port, (words(2, 7),)
