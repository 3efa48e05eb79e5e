"""ConvNeXt of transformers; the port has a flat list of blocks, and 1x1 convolutions for Linear."""

import jax.numpy as jnp
from flax import nnx
from transformers import ConvNextConfig, ConvNextModel

from tests.ports.loading import give, noise, of, randomise

WIDTHS, DEPTHS = (8, 12), (2, 1)


def norm(width, rngs, epsilon=1e-6):
    """Layer norm over the last axis."""
    return nnx.LayerNorm(width, epsilon=epsilon, use_fast_variance=False, rngs=rngs)


class Block(nnx.Module):
    """Depthwise convolution, norm, two products, a scale."""

    def __init__(self, width, rngs):
        self.depthwise = nnx.Conv(width, width, (7, 7), feature_group_count=width, rngs=rngs)
        self.ln = norm(width, rngs)
        self.expand = nnx.Conv(width, 4 * width, (1, 1), rngs=rngs)
        self.reduce = nnx.Conv(4 * width, width, (1, 1), rngs=rngs)
        self.gamma = nnx.Param(jnp.ones(width))

    def __call__(self, x):
        h = nnx.gelu(self.expand(self.ln(self.depthwise(x))), approximate=False)
        return x + self.gamma[...] * self.reduce(h)


class Down(nnx.Module):
    """A norm and a convolution with a stride, in either order."""

    def __init__(self, inner, width, size, rngs, first):
        self.ln = norm(width if first else inner, rngs)
        self.conv = nnx.Conv(inner, width, (size, size), size, padding="VALID", rngs=rngs)
        self.first = first

    def __call__(self, x):
        return self.ln(self.conv(x)) if self.first else self.conv(self.ln(x))


class ConvNext(nnx.Module):
    """Stem, blocks with a downsampling between, pooled output."""

    def __init__(self, rngs):
        self.stem = Down(3, WIDTHS[0], 4, rngs, first=True)
        widths = [width for width, depth in zip(WIDTHS, DEPTHS, strict=True) for _ in range(depth)]
        self.blocks = nnx.List([Block(width, rngs) for width in widths])
        self.down = Down(*WIDTHS, 2, rngs, first=False)
        self.final = norm(WIDTHS[-1], rngs, 1e-12)

    def __call__(self, pixels):
        x = self.stem(pixels)
        for i, block in enumerate(self.blocks):
            x = block(self.down(x) if i == DEPTHS[0] else x)
        return x, self.final(x.mean((1, 2)))


def make():
    """(reference, port, arguments)."""
    config = ConvNextConfig(num_stages=2, hidden_sizes=list(WIDTHS), depths=list(DEPTHS))
    ref, port = randomise(ConvNextModel(config)), ConvNext(nnx.Rngs(0))
    give(port.stem.conv, ref.embeddings.patch_embeddings)
    give(port.stem.ln, ref.embeddings.layernorm)
    give(port.down.ln, ref.encoder.stages[1].downsampling_layer[0])
    give(port.down.conv, ref.encoder.stages[1].downsampling_layer[1])
    give(port.final, ref.layernorm)
    layers = [layer for stage in ref.encoder.stages for layer in stage.layers]
    for block, layer in zip(port.blocks, layers, strict=True):
        give(block.depthwise, layer.dwconv)
        give(block.ln, layer.layernorm)
        give(block.expand, layer.pwconv1)
        give(block.reduce, layer.pwconv2)
        block.gamma[...] = of(layer.layer_scale_parameter)
    return ref, port, (noise(2, 3, 24, 16),)
