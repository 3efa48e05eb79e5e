"""Resnets and attention, and the down, mid and up blocks made of them.

Source: diffusers 0.42.1, `autoencoder_kl_wan.py`. Attribute and argument names are those of the
source. Its list of caches, which all modules count through and write to, is a dict here, nested by
the paths of the modules: each gets its own part and returns the next.
"""

from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import Dropout, get_activation
from jaxvae.layers.attention import attend
from jaxvae.layers.containers import Identity
from jaxvae.layers.convolution import Build, Cache, Conv2d, as_precision
from jaxvae.layers.norms import RMSNorm
from jaxvae.layers.rounding import add
from jaxvae.layers.scopes import Module
from jaxvae.models.wan.causal_convolution import CausalConv3d, last_frames
from jaxvae.models.wan.resampling import AvgDown3D, DupUp3D, Mode, Resample
from jaxvae.run.gradient_checkpointing import call
from jaxvae.run.steps import Video

Result = tuple[Float[Array, "b t2 h2 w2 c2"], Cache]
"""What a module returns of a chunk, and the caches for the next."""


class ResidualBlock(Module):
    """Two normalised, activated causal convolutions beside a shortcut.

    Source: diffusers 0.42.1, `WanResidualBlock`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dropout: float = 0.0,
        non_linearity: str = "silu",
        **build: Unpack[Build],
    ):
        """Take the source's arguments."""
        self.nonlinearity = get_activation(non_linearity)
        self.norm1 = RMSNorm(in_dim, images=False, dtype=build["dtype"])
        self.conv1 = CausalConv3d(in_dim, out_dim, 3, padding=1, **build)
        self.norm2 = RMSNorm(out_dim, images=False, dtype=build["dtype"])
        self.dropout = Dropout(dropout, rngs=build["rngs"])
        self.conv2 = CausalConv3d(out_dim, out_dim, 3, padding=1, **build)
        self.conv_shortcut: CausalConv3d | Identity = Identity()
        if in_dim != out_dim:
            self.conv_shortcut = CausalConv3d(in_dim, out_dim, 1, **build)

    def __call__(self, x: Video, feat_cache: Cache | None = None) -> Result:
        """Return the output and the caches of both convolutions."""
        feat_cache = feat_cache or {}
        new_cache: Cache = {}
        h = self.conv_shortcut(x)
        x = self.nonlinearity(self.norm1(x))
        x, new_cache["conv1"] = remembered(self.conv1, x, feat_cache.get("conv1"))
        x = self.dropout(self.nonlinearity(self.norm2(x)))
        x, new_cache["conv2"] = remembered(self.conv2, x, feat_cache.get("conv2"))
        return add(x, h), new_cache


def remembered(conv: CausalConv3d, x: Video, cache_x: Any) -> tuple[Video, Any]:
    """Return the convolution of `x` after the cached frames, and the frames to cache."""
    return conv(x, cache_x), last_frames(x, cache_x)


class AttentionBlock(Module):
    """Attention with one head among the positions of each frame.

    Source: diffusers 0.42.1, `WanAttentionBlock`.
    """

    def __init__(self, dim: int, **build: Unpack[Build]):
        self.norm = RMSNorm(dim, dtype=build["dtype"])
        self.to_qkv = Conv2d(dim, 3 * dim, 1, **build)
        self.proj = Conv2d(dim, dim, 1, **build)
        self.precision = as_precision(build["precision"])

    def __call__(self, x: Video) -> Video:
        """Return what the positions attend to, projected, beside the input."""
        batch, frames, height, width, channels = x.shape
        qkv = self.to_qkv(self.norm(x.reshape(batch * frames, height, width, channels)))
        qkv = qkv.reshape(batch * frames, height * width, 1, 3 * channels)
        attended = attend(*jnp.split(qkv, 3, axis=-1), self.precision)
        output = self.proj(attended.reshape(batch * frames, height, width, channels))
        return add(output.reshape(x.shape), x)


class MidBlock(Module):
    """Resnets with attention between them.

    Source: diffusers 0.42.1, `WanMidBlock`.
    """

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        non_linearity: str = "silu",
        num_layers: int = 1,
        **build: Unpack[Build],
    ):
        """Take the source's arguments; there is one resnet more than layers."""
        self.gradient_checkpointing = False
        self.attentions = nnx.List(AttentionBlock(dim, **build) for _ in range(num_layers))
        self.resnets = nnx.List(
            ResidualBlock(dim, dim, dropout, non_linearity, **build) for _ in range(num_layers + 1)
        )

    def __call__(self, x: Video, feat_cache: Cache | None = None) -> Result:
        """Return the output and the caches of the resnets."""
        run = Chain(self, feat_cache)
        x = run("resnets.0", self.resnets[0], x)
        for i, attention in enumerate(self.attentions, start=1):
            x = run(f"resnets.{i}", self.resnets[i], attention(x))
        return x, run.new_cache


class Chain:
    """Modules of a block one after the other, each with its part of the caches."""

    def __init__(self, block: Any, feat_cache: Cache | None):
        self._block = block
        self._cache = feat_cache
        self.new_cache: Cache = {}

    def __call__(self, key: str, module: nnx.Module, x: Video, *args: Any) -> Any:
        """Return the module's output, and keep what it caches."""
        past = None if self._cache is None else self._cache[key]
        checkpoint = isinstance(module, ResidualBlock) and self._block.gradient_checkpointing
        x, self.new_cache[key] = call(module, checkpoint, x, past, *args)
        return x


class ResidualDownBlock(Module):
    """Resnets and a downsampler, unless it is the last block, beside a shortcut of means.

    Source: diffusers 0.42.1, `WanResidualDownBlock` (Wan 2.2).
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dropout: float,
        num_res_blocks: int,
        temperal_downsample: bool = False,
        down_flag: bool = False,
        **build: Unpack[Build],
    ):
        """Take the source's arguments."""
        self.gradient_checkpointing = False
        self.avg_shortcut = AvgDown3D(
            in_dim,
            out_dim,
            factor_t=2 if temperal_downsample else 1,
            factor_s=2 if down_flag else 1,
        )
        self.resnets = nnx.List(
            ResidualBlock(in_dim if i == 0 else out_dim, out_dim, dropout, **build)
            for i in range(num_res_blocks)
        )
        mode: Mode = "downsample3d" if temperal_downsample else "downsample2d"
        self.downsampler = Resample(out_dim, mode, **build) if down_flag else None

    def __call__(self, x: Video, feat_cache: Cache | None = None) -> Result:
        """Return the output and the caches of resnets and downsampler."""
        run, x_copy = Chain(self, feat_cache), x
        for i, resnet in enumerate(self.resnets):
            x = run(f"resnets.{i}", resnet, x)
        if self.downsampler is not None:
            x = run("downsampler", self.downsampler, x)
        return add(x, self.avg_shortcut(x_copy)), run.new_cache


class ResidualUpBlock(Module):
    """Resnets and an upsampler, unless it is the last block, beside a shortcut of repeated values.

    Source: diffusers 0.42.1, `WanResidualUpBlock` (Wan 2.2).
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        num_res_blocks: int,
        dropout: float = 0.0,
        temperal_upsample: bool = False,
        up_flag: bool = False,
        non_linearity: str = "silu",
        **build: Unpack[Build],
    ):
        """Take the source's arguments; there is one resnet more than `num_res_blocks`."""
        self.gradient_checkpointing = False
        time = 2 if temperal_upsample else 1
        self.avg_shortcut = DupUp3D(in_dim, out_dim, time, factor_s=2) if up_flag else None
        self.resnets = nnx.List(
            ResidualBlock(in_dim if i == 0 else out_dim, out_dim, dropout, non_linearity, **build)
            for i in range(num_res_blocks + 1)
        )
        mode: Mode = "upsample3d" if temperal_upsample else "upsample2d"
        self.upsampler = Resample(out_dim, mode, out_dim, **build) if up_flag else None

    def __call__(
        self, x: Video, feat_cache: Cache | None = None, first_chunk: bool = False
    ) -> Result:
        """Return the output and the caches of resnets and upsampler."""
        run, x_copy = Chain(self, feat_cache), x
        for i, resnet in enumerate(self.resnets):
            x = run(f"resnets.{i}", resnet, x)
        if self.upsampler is not None:
            x = run("upsampler", self.upsampler, x)
        if self.avg_shortcut is not None:
            x = add(x, self.avg_shortcut(x_copy, first_chunk))
        return x, run.new_cache


class UpBlock(Module):
    """Resnets and an upsampler that halves the channels, unless it is the last block.

    Source: diffusers 0.42.1, `WanUpBlock`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        num_res_blocks: int,
        dropout: float = 0.0,
        upsample_mode: Mode | None = None,
        non_linearity: str = "silu",
        **build: Unpack[Build],
    ):
        """Take the source's arguments; there is one resnet more than `num_res_blocks`."""
        self.gradient_checkpointing = False
        self.resnets = nnx.List(
            ResidualBlock(in_dim if i == 0 else out_dim, out_dim, dropout, non_linearity, **build)
            for i in range(num_res_blocks + 1)
        )
        self.upsamplers: nnx.List[Resample] | None
        if upsample_mode is None:
            self.upsamplers = None
        else:
            self.upsamplers = nnx.List([Resample(out_dim, upsample_mode, **build)])

    def __call__(
        self, x: Video, feat_cache: Cache | None = None, first_chunk: bool = False
    ) -> Result:
        """Return the output and the caches of resnets and upsampler; the first chunk is alike."""
        run = Chain(self, feat_cache)
        for i, resnet in enumerate(self.resnets):
            x = run(f"resnets.{i}", resnet, x)
        for i, upsampler in enumerate(self.upsamplers or ()):
            x = run(f"upsamplers.{i}", upsampler, x)
        return x, run.new_cache
