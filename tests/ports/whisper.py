"""Whisper of transformers with its own attention written out; the port has boolean masks, and
takes features as (item, time, mel).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from transformers import WhisperConfig, WhisperModel

from tests.ports.loading import give, noise, randomise, words

WIDTH, HEADS, LAYERS = 24, 3, 1


def norm(rngs):
    """Layer norm of the width."""
    return nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)


class Attention(nnx.Module):
    """Queries of one sequence, keys and values of another."""

    def __init__(self, rngs):
        self.wq, self.wv, self.wo = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(3))
        self.wk = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x, memory, seen=None):
        def heads(y):
            return y.reshape(*y.shape[:2], HEADS, -1)

        q, k, v = heads(self.wq(x)), heads(self.wk(memory)), heads(self.wv(memory))
        return self.wo(jax.nn.dot_product_attention(q, k, v, mask=seen).reshape(x.shape))


class Feed(nnx.Module):
    """Norm and two products."""

    def __init__(self, rngs):
        self.ln = norm(rngs)
        self.inner, self.outer = nnx.Linear(WIDTH, 40, rngs=rngs), nnx.Linear(40, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.outer(nnx.gelu(self.inner(self.ln(x)), approximate=False))


class Encoder(nnx.Module):
    """Two convolutions and layers."""

    def __init__(self, rngs):
        self.front = nnx.Conv(8, WIDTH, (3,), padding=1, rngs=rngs)
        self.halve = nnx.Conv(WIDTH, WIDTH, (3,), 2, padding=1, rngs=rngs)
        self.places = nnx.Param(jnp.zeros((12, WIDTH)))
        self.norms = nnx.List([norm(rngs) for _ in range(LAYERS)])
        self.attns = nnx.List([Attention(rngs) for _ in range(LAYERS)])
        self.feeds = nnx.List([Feed(rngs) for _ in range(LAYERS)])
        self.ln = norm(rngs)

    def __call__(self, mel):
        x = nnx.gelu(self.front(mel), approximate=False)
        x = nnx.gelu(self.halve(x), approximate=False) + self.places[...]
        for ln, attn, feed in zip(self.norms, self.attns, self.feeds, strict=True):
            h = ln(x)
            x = feed(x + attn(h, h))
        return self.ln(x)


class Decoder(nnx.Module):
    """Words, causal attention, attention to the encoder, products."""

    def __init__(self, rngs):
        self.words, self.places = nnx.Embed(50, WIDTH, rngs=rngs), nnx.Embed(16, WIDTH, rngs=rngs)
        self.norms = nnx.List([norm(rngs) for _ in range(2 * LAYERS)])
        self.selfs = nnx.List([Attention(rngs) for _ in range(LAYERS)])
        self.crosses = nnx.List([Attention(rngs) for _ in range(LAYERS)])
        self.feeds = nnx.List([Feed(rngs) for _ in range(LAYERS)])
        self.ln = norm(rngs)

    def __call__(self, ids, memory):
        at = jnp.arange(ids.shape[1])
        x = self.words(ids) + self.places(at)
        seen = (at[:, None] >= at)[None, None]
        for i in range(LAYERS):
            h = self.norms[2 * i](x)
            x = x + self.selfs[i](h, h, seen)
            x = x + self.crosses[i](self.norms[2 * i + 1](x), memory)
            x = self.feeds[i](x)
        return self.ln(x)


class Whisper(nnx.Module):
    """What the decoder makes of words and of what the encoder heard."""

    def __init__(self, rngs):
        self.enc, self.dec = Encoder(rngs), Decoder(rngs)

    def __call__(self, mel, ids):
        memory = self.enc(mel)
        return self.dec(ids, memory), memory


class Heard(WhisperModel):
    """Whisper whose first two arguments are what both sides read."""

    def forward(self, input_features, decoder_input_ids):
        out = super().forward(input_features, decoder_input_ids=decoder_input_ids)
        return out.last_hidden_state, out.encoder_last_hidden_state


def _attention(port, module):
    for name in "qkv":
        give(getattr(port, f"w{name}"), getattr(module, f"{name}_proj"))
    give(port.wo, module.out_proj)


def _feed(port, layer):
    give(port.ln, layer.final_layer_norm)
    give(port.inner, layer.fc1)
    give(port.outer, layer.fc2)


def make():
    """(reference, port, arguments)."""
    config = WhisperConfig(
        vocab_size=50,
        num_mel_bins=8,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_source_positions=12,
        max_target_positions=16,
        pad_token_id=0,
        attn_implementation="eager",
    )
    ref, port = randomise(Heard(config)), Whisper(nnx.Rngs(0))
    enc, dec = port.enc, port.dec
    give(enc.front, ref.encoder.conv1)
    give(enc.halve, ref.encoder.conv2)
    enc.places[...] = jnp.asarray(ref.encoder.embed_positions.weight.detach().numpy())
    for i, layer in enumerate(ref.encoder.layers):
        give(enc.norms[i], layer.self_attn_layer_norm)
        _attention(enc.attns[i], layer.self_attn)
        _feed(enc.feeds[i], layer)
    give(enc.ln, ref.encoder.layer_norm)
    give(dec.words, ref.decoder.embed_tokens)
    give(dec.places, ref.decoder.embed_positions)
    for i, layer in enumerate(ref.decoder.layers):
        give(dec.norms[2 * i], layer.self_attn_layer_norm)
        give(dec.norms[2 * i + 1], layer.encoder_attn_layer_norm)
        _attention(dec.selfs[i], layer.self_attn)
        _attention(dec.crosses[i], layer.encoder_attn)
        _feed(dec.feeds[i], layer)
    give(dec.ln, ref.decoder.layer_norm)
    return ref, port, (noise(2, 8, 24), words(2, 6))
