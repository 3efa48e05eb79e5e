"""A residual block of diffusers' WAN VAE in two chunks with its lists of caches; the port returns
its caches.
"""

import jax.numpy as jnp
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanResidualBlock
from flax import nnx

from tests.ports.loading import noise, of, randomise

INNER, WIDTH = 4, 6


class Chunks(torch.nn.Module):
    """A convolution and a block, on the first frame and then on the others."""

    def __init__(self):
        super().__init__()
        self.conv_in = WanCausalConv3d(3, INNER, 3, padding=1)
        self.block = WanResidualBlock(INNER, WIDTH)

    def forward(self, x):
        caches, found = [None, None, None], []
        for chunk in (x[:, :, :1], x[:, :, 1:3], x[:, :, 3:]):
            index = [0]
            kept = chunk[:, :, -2:].clone()
            if kept.shape[2] < 2 and caches[0] is not None:
                kept = torch.cat([caches[0][:, :, -1:], kept], 2)
            h = self.conv_in(chunk, caches[0])
            caches[0] = kept
            index[0] += 1
            found.append(self.block(h, caches, index))
        return torch.cat(found, 2)


class Causal(nnx.Module):
    """Convolution over time that sees the past, which it returns."""

    def __init__(self, inner, width, size, rngs):
        pad = (0, size // 2, size // 2)
        pad = tuple((one, one) for one in pad)
        self.conv = nnx.Conv(inner, width, (size,) * 3, padding=pad, rngs=rngs)
        self.past = size - 1

    def __call__(self, x, cache=None):
        if not self.past:
            return self.conv(x), None
        if cache is None:
            cache = jnp.zeros((x.shape[0], self.past, *x.shape[2:]))
        x = jnp.concatenate([cache, x], 1)
        return self.conv(x), x[:, -self.past :]


class Rms(nnx.Module):
    """A norm over the channels."""

    def __init__(self, width, rngs):
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x):
        length = jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))
        return x / jnp.maximum(length, 1e-12) * x.shape[-1] ** 0.5 * self.scale[...]


class Block(nnx.Module):
    """Two norms and convolutions beside a 1x1x1 convolution."""

    def __init__(self, inner, width, rngs):
        self.rms1, self.conv1 = Rms(inner, rngs), Causal(inner, width, 3, rngs)
        self.rms2, self.conv2 = Rms(width, rngs), Causal(width, width, 3, rngs)
        self.skip = Causal(inner, width, 1, rngs)

    def __call__(self, x, caches):
        h, first = self.conv1(nnx.silu(self.rms1(x)), caches[0])
        h, second = self.conv2(nnx.silu(self.rms2(h)), caches[1])
        return h + self.skip(x)[0], (first, second)


class Video(nnx.Module):
    """Both, chunk by chunk."""

    def __init__(self, rngs):
        self.first, self.res = Causal(3, INNER, 3, rngs), Block(INNER, WIDTH, rngs)

    def __call__(self, x):
        cache, caches, found = None, (None, None), []
        for chunk in (x[:, :1], x[:, 1:3], x[:, 3:]):
            h, cache = self.first(chunk, cache)
            h, caches = self.res(h, caches)
            found.append(h)
        return jnp.concatenate(found, 1)


def _conv(port, module):
    port.conv.kernel[...] = of(module.weight).transpose(2, 3, 4, 1, 0)
    port.conv.bias[...] = of(module.bias)


def make():
    """(reference, port, arguments)."""
    ref, port = randomise(Chunks()), Video(nnx.Rngs(0))
    _conv(port.first, ref.conv_in)
    _conv(port.res.conv1, ref.block.conv1)
    _conv(port.res.conv2, ref.block.conv2)
    _conv(port.res.skip, ref.block.conv_shortcut)
    port.res.rms1.scale[...] = of(ref.block.norm1.gamma).reshape(-1)
    port.res.rms2.scale[...] = of(ref.block.norm2.gamma).reshape(-1)
    return ref, port, (noise(1, 3, 5, 6, 7),)
