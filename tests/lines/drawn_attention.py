"""Attention drawn by seed: how the reference and its port write it, and a mistake of the port."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

from tests.nets import ported, randomise, torch_of
from tests.ports import nnx_of

BATCH, LENGTH, WIDTH = 2, 6, 8

MISTAKES = {
    "scale": "attention_scale",
    "no mask": "attention_mask",
    "one more": "attention_mask",
    "exchanged": "attention_heads",
    "groups": "attention_heads",
    "reread": "attention_heads",
    "later keys": "rotary",
    "direction": "rotary",
    "base": "rotary",
    "bfloat16": "dtype",
    "axis": "norm_axes",
}


def drawn(seed, mistake=""):
    """Reference, port and input of one drawing; its mistake is one of `MISTAKES`."""
    draw = np.random.default_rng(seed)
    heads = int(draw.choice([2, 4]))
    groups = 2 if mistake == "groups" or draw.random() < 0.5 else heads
    heads = 4 if mistake == "groups" else heads
    window = int(draw.choice([3, LENGTH]))
    style = str(draw.choice(["fused", "grouped", "matmul", "einsum", "bmm"]))
    halves, added = bool(draw.random() < 0.5), bool(draw.random() < 0.5)
    torch.manual_seed(seed)
    sizes = {"q": heads, "k": groups, "v": groups}
    parts = {n: torch.nn.Linear(heads * WIDTH, size * WIDTH) for n, size in sizes.items()}
    parts["o"] = torch.nn.Linear(heads * WIDTH, heads * WIDTH)

    def forward(self, x):
        q, k, v = (self.get_submodule(n)(x).unflatten(-1, (-1, WIDTH)) for n in "qkv")
        q, k = (torch_turned(one, halves) for one in (q, k))
        return self.o(torch_attended(q, k, v, style, window, added).flatten(2))

    reference = randomise(torch_of(forward, **parts))

    def call(self, x):
        q, k, v = (getattr(self, n)(x).reshape(BATCH, LENGTH, -1, WIDTH) for n in "qkv")
        q, k = turned(q, halves, mistake), turned(k, halves, mistake, shift=mistake == "later keys")
        return self.o(attended(q, k, v, mistake, window))

    port = nnx_of(call, **{n: ported(getattr(reference, n)) for n in "qkvo"})
    x = draw.standard_normal((BATCH, LENGTH, heads * WIDTH)).astype(np.float32)
    return reference, port, x


def torch_turned(x, halves):
    angles = torch.arange(LENGTH)[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    if halves:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)


def torch_attended(q, k, v, style, window, added):
    place = torch.arange(LENGTH)
    gap = place[:, None] - place
    seen = (gap >= 0) & (gap < window)
    mask = torch.zeros(seen.shape).masked_fill(~seen, -1e9) if added else seen
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if style == "grouped":
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return y.transpose(1, 2)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if style == "fused":
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
    if style == "bmm":
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        w = torch.bmm(q / math.sqrt(WIDTH), k.mT)
    elif style == "einsum":
        w = torch.einsum("bhqd,bhkd->bhqk", q, k) * WIDTH**-0.5
    else:
        w = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
    w = w + mask if added else w.masked_fill(~mask, -math.inf)
    if style == "einsum":
        return torch.einsum("bhqk,bhkd->bqhd", F.softmax(w, dim=-1), v)
    y = w.softmax(-1) @ v
    return y.unflatten(0, (BATCH, -1)).transpose(1, 2) if style == "bmm" else y.transpose(1, 2)


def turned(x, halves, mistake, shift=0):
    base = 10000.0 if mistake == "base" else 100.0
    at = (jnp.arange(LENGTH) + shift)[:, None]
    angles = at * base ** (-jnp.arange(0, WIDTH, 2)[None] / WIDTH)
    angles = -angles if mistake == "direction" else angles
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    a, b = jnp.split(x, 2, -1) if halves else (x[..., ::2], x[..., 1::2])
    parts = a * cos - b * sin, b * cos + a * sin
    return jnp.concatenate(parts, -1) if halves else jnp.stack(parts, -1).reshape(x.shape)


def attended(q, k, v, mistake, window):
    repeats = q.shape[2] // k.shape[2]
    if mistake == "groups":
        k, v = (jnp.tile(x, (1, 1, repeats, 1)) for x in (k, v))
    else:
        k, v = (jnp.repeat(x, repeats, 2) for x in (k, v))
    if mistake == "reread":
        v = v.reshape(BATCH, -1, LENGTH, WIDTH).swapaxes(1, 2)
    gap = jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)[None]
    last = window + (mistake == "one more" and window < LENGTH)
    seen = (gap >= (-1 if mistake == "one more" and window == LENGTH else 0)) & (gap < last)
    if mistake == "exchanged":
        q, k = k, q
    if mistake == "bfloat16":
        q, k = q.astype(jnp.bfloat16), k.astype(jnp.bfloat16)
    w = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    w = w * (0.2 if mistake == "scale" else WIDTH**-0.5)
    if mistake != "no mask":
        w = jnp.where(seen[None, None], w, -1e9)
    p = jax.nn.softmax(w, 1 if mistake == "axis" else -1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(BATCH, LENGTH, -1)
