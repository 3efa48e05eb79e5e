"""ResNet of transformers; the port writes activation and pooling as functions, in flat blocks."""

import jax
import jax.numpy as jnp
from flax import nnx
from transformers import ResNetConfig, ResNetModel

from tests.ports.loading import give, noise, randomise


def batch_norm(width, rngs):
    """Batch norm of what was learnt."""
    options = {
        "epsilon": 1e-5,
        "momentum": 0.9,
        "use_fast_variance": False,
        "use_running_average": True,
    }
    return nnx.BatchNorm(width, **options, rngs=rngs)


class Bottleneck(nnx.Module):
    """1x1, 3x3, 1x1, each with its norm."""

    def __init__(self, inner, width, stride, rngs):
        small = width // 4
        sizes = ((inner, small, 1, 1), (small, small, 3, stride), (small, width, 1, 1))
        for i, (start, end, size, step) in enumerate(sizes, 1):
            conv = nnx.Conv(
                start, end, (size, size), step, padding=size // 2, use_bias=False, rngs=rngs
            )
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", batch_norm(end, rngs))
        conv = nnx.Conv(inner, width, (1, 1), stride, use_bias=False, rngs=rngs)
        changes = stride != 1 or inner != width
        self.skip = nnx.Sequential(conv, batch_norm(width, rngs)) if changes else None

    def __call__(self, x):
        h = nnx.relu(self.bn1(self.conv1(x)))
        h = nnx.relu(self.bn2(self.conv2(h)))
        return nnx.relu(self.bn3(self.conv3(h)) + (x if self.skip is None else self.skip(x)))


class ResNet(nnx.Module):
    """Stem, maximum, blocks, mean."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(3, 8, (7, 7), 2, padding=3, use_bias=False, rngs=rngs)
        self.bn1 = batch_norm(8, rngs)
        shapes = ((8, 16, 1), (16, 16, 1), (16, 24, 2))
        self.blocks = nnx.List([Bottleneck(*shape, rngs) for shape in shapes])

    def __call__(self, x):
        x = nnx.relu(self.bn1(self.conv1(x)))
        pad = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pad)
        for block in self.blocks:
            x = block(x)
        return x, x.mean((1, 2), keepdims=True)


def make():
    """(reference, port, arguments)."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[2, 1])
    ref, port = randomise(ResNetModel(config)), ResNet(nnx.Rngs(0))
    give(port.conv1, ref.embedder.embedder.convolution)
    give(port.bn1, ref.embedder.embedder.normalization)
    layers = [layer for stage in ref.encoder.stages for layer in stage.layers]
    for block, layer in zip(port.blocks, layers, strict=True):
        for i, one in enumerate(layer.layer, 1):
            give(getattr(block, f"conv{i}"), one.convolution)
            give(getattr(block, f"bn{i}"), one.normalization)
        if block.skip is not None:
            give(block.skip.layers[0], layer.shortcut.convolution)
            give(block.skip.layers[1], layer.shortcut.normalization)
    return ref, port, (noise(2, 3, 32, 24),)
