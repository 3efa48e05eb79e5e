"""Attention with grouped heads and rotary positions, and a port of it with mistakes to choose."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from flax import nnx

from tests.nets import ported, randomise

BATCH, LENGTH, HEADS, GROUPS, WIDTH = 2, 7, 4, 2, 8
CHANNELS = HEADS * WIDTH

MISTAKES = (
    *("scale", "causal", "diagonal", "exchanged", "groups", "off by one", "pairs", "axis"),
    *("bfloat16", "value bias"),
)

CAUSES = {
    **dict.fromkeys(("exchanged", "groups"), "attention_heads"),
    **dict.fromkeys(("causal", "diagonal"), "attention_mask"),
    **dict.fromkeys(("off by one", "pairs"), "rotary"),
    "scale": "attention_scale",
    "axis": "norm_axes",
    "bfloat16": "dtype",
    "value bias": "scale_or_offset",
}

ONE = (("exchanged", "bfloat16"), ("causal", "diagonal"))
"""Pairs of which one hides the other: without the mask its diagonal does not show."""


class Reference(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        self.q = torch.nn.Linear(CHANNELS, CHANNELS)
        self.k = torch.nn.Linear(CHANNELS, GROUPS * WIDTH)
        self.v = torch.nn.Linear(CHANNELS, GROUPS * WIDTH)
        self.o = torch.nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, WIDTH).transpose(1, 2)
        k = self.k(x).view(b, s, GROUPS, WIDTH).transpose(1, 2)
        v = self.v(x).view(b, s, GROUPS, WIDTH).transpose(1, 2)
        angles = torch.arange(s)[:, None] * 100.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        angles = torch.cat([angles, angles], -1)
        q, k = self.turned(q, angles), self.turned(k, angles)
        k = k.repeat_interleave(HEADS // GROUPS, 1)
        v = v.repeat_interleave(HEADS // GROUPS, 1)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            w = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
            w = w.masked_fill(~torch.ones(s, s, dtype=torch.bool).tril(), float("-inf"))
            y = w.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, s, CHANNELS))

    def turned(self, x, angles):
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


class Port(nnx.Module):
    """Each mistake of those asked for is in the line that is marked with its name."""

    def __init__(self, reference, *mistakes):
        self.mistakes = mistakes
        self.q, self.k, self.v, self.o = (ported(getattr(reference, name)) for name in "qkvo")

    def __call__(self, x):
        b, s, _ = x.shape
        q = self.q(x).reshape(b, s, HEADS, WIDTH)
        k = self.k(x).reshape(b, s, GROUPS, WIDTH)
        v = self.v(x)
        if "value bias" in self.mistakes:
            v = x @ self.v.kernel[...]  # fault: value bias
        v = v.reshape(b, s, GROUPS, WIDTH)
        frequencies = 100.0 ** (-jnp.arange(0, WIDTH, 2)[None] / WIDTH)
        q = self.turned(q, jnp.arange(s)[:, None] * frequencies)
        if "off by one" in self.mistakes:
            k = self.turned(k, jnp.arange(1, s + 1)[:, None] * frequencies)  # fault: off by one
        else:
            k = self.turned(k, jnp.arange(s)[:, None] * frequencies)
        if "groups" in self.mistakes:
            k = jnp.tile(k, (1, 1, HEADS // GROUPS, 1))  # fault: groups
        else:
            k = jnp.repeat(k, HEADS // GROUPS, 2)
        v = jnp.repeat(v, HEADS // GROUPS, 2)
        if "exchanged" in self.mistakes:
            w = jnp.einsum("bshd,bthd->bhst", k, q)  # fault: exchanged
        elif "bfloat16" in self.mistakes:
            coarse = jnp.bfloat16  # fault: bfloat16
            w = jnp.einsum("bshd,bthd->bhst", q.astype(coarse), k.astype(coarse))
            w = w.astype(jnp.float32)
        else:
            w = jnp.einsum("bshd,bthd->bhst", q, k)
        w = w / (WIDTH if "scale" in self.mistakes else math.sqrt(WIDTH))  # fault: scale
        last = 1 if "diagonal" in self.mistakes else 0  # fault: diagonal
        mask = jnp.tril(jnp.ones((s, s), bool), last)
        if "causal" not in self.mistakes:
            w = jnp.where(mask[None, None], w, -jnp.inf)
        p = jax.nn.softmax(w, -2 if "axis" in self.mistakes else -1)  # fault: axis, causal
        y = jnp.einsum("bhst,bthd->bshd", p, v)
        return self.o(y.reshape(b, s, CHANNELS))

    def turned(self, x, angles):
        angles = jnp.concatenate([angles, angles], -1)[None, :, None]
        if "pairs" in self.mistakes:
            a, b = x[..., ::2], x[..., 1::2]  # fault: pairs
            turned = jnp.stack([-b, a], -1).reshape(x.shape)
        else:
            a, b = jnp.split(x, 2, -1)
            turned = jnp.concatenate([-b, a], -1)
        return x * jnp.cos(angles) + turned * jnp.sin(angles)


def nets(fused, *mistakes):
    """Reference, port and input."""
    torch.manual_seed(0)
    reference = randomise(Reference(fused))
    x = np.random.default_rng(0).standard_normal((BATCH, LENGTH, CHANNELS)).astype(np.float32)
    return reference, Port(reference, *mistakes), x


def marked(file, word):
    """Numbers of the lines of a file that are marked as this fault."""
    texts = Path(file).read_text().split("\n")
    return [at for at, text in enumerate(texts, 1) if word in text.partition("# fault:")[2]]
