"""EfficientNet of transformers; the port has one class of block, and activations in its norms."""

import jax.numpy as jnp
from flax import nnx
from transformers import EfficientNetConfig, EfficientNetModel

from tests.ports.loading import give, noise, randomise


class NormAct(nnx.Module):
    """Batch norm with the activation built in."""

    def __init__(self, width, rngs, act=True, momentum=0.01):
        options = {
            "epsilon": 1e-3,
            "momentum": momentum,
            "use_fast_variance": False,
            "use_running_average": True,
        }
        self.bn = nnx.BatchNorm(width, **options, rngs=rngs)
        self.act = act

    def __call__(self, x):
        x = self.bn(x)
        return nnx.silu(x) if self.act else x


class Gate(nnx.Module):
    """A factor for each channel from their means, by two products."""

    def __init__(self, width, small, rngs):
        self.inner = nnx.Linear(width, small, rngs=rngs)
        self.outer = nnx.Linear(small, width, rngs=rngs)

    def __call__(self, x):
        mean = x.mean((1, 2))
        return x * nnx.sigmoid(self.outer(nnx.silu(self.inner(mean))))[:, None, None]


class MBConv(nnx.Module):
    """Widen, filter each channel, gate, narrow."""

    def __init__(self, inner, width, ratio, stride, residual, rngs):
        wide = inner * ratio
        options = {"use_bias": False, "rngs": rngs}
        self.widen = nnx.Conv(inner, wide, (1, 1), **options) if ratio > 1 else None
        self.na0 = NormAct(wide, rngs, momentum=0.9) if ratio > 1 else None
        pad = (int(stride == 1), 1)
        options["feature_group_count"] = wide
        self.each = nnx.Conv(wide, wide, (3, 3), stride, padding=(pad, pad), **options)
        self.na1 = NormAct(wide, rngs)
        self.gate = Gate(wide, max(1, inner // 4), rngs)
        self.narrow = nnx.Conv(wide, width, (1, 1), use_bias=False, rngs=rngs)
        self.na2 = NormAct(width, rngs, act=False)
        self.residual = residual

    def __call__(self, x):
        h = x if self.widen is None else self.na0(self.widen(x))
        h = self.na2(self.narrow(self.gate(self.na1(self.each(h)))))
        return h + x if self.residual else h


class EfficientNet(nnx.Module):
    """Stem, blocks, top, mean."""

    def __init__(self, rngs):
        pad = ((0, 1), (0, 1))
        self.stem = nnx.Conv(3, 8, (3, 3), 2, padding=pad, use_bias=False, rngs=rngs)
        self.na = NormAct(8, rngs)
        shapes = ((8, 8, 1, 1, False), (8, 16, 4, 2, False), (16, 16, 4, 1, True))
        self.body = nnx.List([MBConv(*shape, rngs) for shape in shapes])
        self.top = nnx.Conv(16, 24, (1, 1), use_bias=False, rngs=rngs)
        self.na_top = NormAct(24, rngs)

    def __call__(self, x):
        x = self.na(self.stem(x))
        for block in self.body:
            x = block(x)
        x = self.na_top(self.top(x))
        return {"map": x, "vector": jnp.mean(x, (1, 2))}


def make():
    """(reference, port, arguments)."""
    config = EfficientNetConfig(
        width_coefficient=0.25,
        depth_coefficient=1.0,
        depth_divisor=8,
        hidden_dim=24,
        in_channels=[32, 32],
        out_channels=[32, 64],
        kernel_sizes=[3, 3],
        strides=[1, 2],
        expand_ratios=[1, 4],
        num_block_repeats=[1, 2],
        depthwise_padding=[],
        dropout_rate=0.0,
    )
    ref = EfficientNetModel(config)
    ref.encoder.top_conv = type(ref.encoder.top_conv)(16, 24, 1, bias=False)
    ref, port = randomise(ref), EfficientNet(nnx.Rngs(0))
    give(port.stem, ref.embeddings.convolution)
    give(port.na.bn, ref.embeddings.batchnorm)
    give(port.top, ref.encoder.top_conv)
    give(port.na_top.bn, ref.encoder.top_bn)
    for block, one in zip(port.body, ref.encoder.blocks, strict=True):
        if block.widen is not None:
            give(block.widen, one.expansion.expand_conv)
            give(block.na0.bn, one.expansion.expand_bn)
        give(block.each, one.depthwise_conv.depthwise_conv)
        give(block.na1.bn, one.depthwise_conv.depthwise_norm)
        give(block.gate.inner, one.squeeze_excite.reduce)
        give(block.gate.outer, one.squeeze_excite.expand)
        give(block.narrow, one.projection.project_conv)
        give(block.na2.bn, one.projection.project_bn)
    return ref, port, (noise(2, 3, 24, 24),)
