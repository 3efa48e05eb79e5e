"""Resnets and attention, and the down, mid and up blocks made of them.

Source: diffusers 0.42.1, `autoencoder_kl_wan.py`. Attribute and argument names are those of the
source. Its list of caches, which all modules count through and write to, is a dict here, nested by
the paths of the modules: each gets its own part and returns the next.
"""

from collections.abc import Iterable
from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import Dropout, SiLU
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


class Chain:
    """The modules of a block one after the other, each with its own part of the caches."""

    def __init__(self, block: Any, feat_cache: Cache | None):
        self._block = block
        self._cache = feat_cache
        self.new_cache: Cache = {}

    def conv(self, name: str, x: Video) -> Any:
        """Return what the block's convolution of this name makes of `x` after the cached frames."""
        past = None if self._cache is None else self._cache[name]
        self.new_cache[name] = last_frames(x, past)
        return getattr(self._block, name)(x, past)

    def module(self, name: str, module: nnx.Module, x: Video, *args: Any) -> Any:
        """Return the output of a module that takes and returns caches."""
        past = None if self._cache is None else self._cache[name]
        if isinstance(module, ResidualBlock):
            x, new = call(module, self._block.gradient_checkpointing, x, past, *args)
        else:
            x, new = module(x, past, *args)
        self.new_cache[name] = new
        return x

    def modules(self, name: str, modules: Iterable[nnx.Module] | None, x: Video) -> Any:
        """Return the output of the modules of a list, or of none."""
        for i, module in enumerate(modules or ()):
            x = self.module(f"{name}.{i}", module, x)
        return x


class ResidualBlock(Module):
    """Two normalised, activated causal convolutions beside a shortcut.

    Source: diffusers 0.42.1, `WanResidualBlock`.
    """

    def __init__(self, in_dim: int, out_dim: int, dropout: float = 0.0, **build: Unpack[Build]):
        self.nonlinearity = SiLU()
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
        run, h = Chain(self, feat_cache), self.conv_shortcut(x)
        x = run.conv("conv1", self.nonlinearity(self.norm1(x)))
        x = run.conv("conv2", self.dropout(self.nonlinearity(self.norm2(x))))
        return add(x, h), run.new_cache


def _resnets(
    in_dim: int, out_dim: int, count: int, dropout: float, build: Build
) -> nnx.List[ResidualBlock]:
    dims = [in_dim] + [out_dim] * (count - 1)
    return nnx.List(ResidualBlock(dim, out_dim, dropout, **build) for dim in dims)


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
        frames = x.reshape(-1, *x.shape[2:])
        qkv = self.to_qkv(self.norm(frames))
        parts = jnp.split(qkv.reshape(qkv.shape[0], -1, 1, qkv.shape[-1]), 3, axis=-1)
        output = self.proj(attend(*parts, self.precision).reshape(frames.shape))
        total: Array = add(output.reshape(x.shape), x)
        return total


class MidBlock(Module):
    """Resnets with attention between them: one resnet more than layers.

    Source: diffusers 0.42.1, `WanMidBlock`.
    """

    def __init__(self, dim: int, dropout: float = 0.0, num_layers: int = 1, **build: Unpack[Build]):
        self.gradient_checkpointing = False
        self.attentions = nnx.List(AttentionBlock(dim, **build) for _ in range(num_layers))
        self.resnets = _resnets(dim, dim, num_layers + 1, dropout, build)

    def __call__(self, x: Video, feat_cache: Cache | None = None) -> Result:
        """Return the output and the caches of the resnets."""
        run = Chain(self, feat_cache)
        x = run.module("resnets.0", self.resnets[0], x)
        for i, attention in enumerate(self.attentions, start=1):
            x = run.module(f"resnets.{i}", self.resnets[i], attention(x))
        return x, run.new_cache


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
        self.gradient_checkpointing = False
        factors = (2 if temperal_downsample else 1, 2 if down_flag else 1)
        self.avg_shortcut = AvgDown3D(in_dim, out_dim, *factors)
        self.resnets = _resnets(in_dim, out_dim, num_res_blocks, dropout, build)
        mode: Mode = "downsample3d" if temperal_downsample else "downsample2d"
        self.downsampler = Resample(out_dim, mode, **build) if down_flag else None

    def __call__(self, x: Video, feat_cache: Cache | None = None) -> Result:
        """Return the output and the caches of resnets and downsampler."""
        run, x_copy = Chain(self, feat_cache), x
        x = run.modules("resnets", self.resnets, x)
        if self.downsampler is not None:
            x = run.module("downsampler", self.downsampler, x)
        return add(x, self.avg_shortcut(x_copy)), run.new_cache


class ResidualUpBlock(Module):
    """Resnets and an upsampler, unless it is the last block, beside a shortcut of repeated values.

    Source: diffusers 0.42.1, `WanResidualUpBlock` (Wan 2.2). There is one resnet more than
    `num_res_blocks`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        num_res_blocks: int,
        dropout: float = 0.0,
        temperal_upsample: bool = False,
        up_flag: bool = False,
        **build: Unpack[Build],
    ):
        self.gradient_checkpointing = False
        time = 2 if temperal_upsample else 1
        self.avg_shortcut = DupUp3D(in_dim, out_dim, time, factor_s=2) if up_flag else None
        self.resnets = _resnets(in_dim, out_dim, num_res_blocks + 1, dropout, build)
        mode: Mode = "upsample3d" if temperal_upsample else "upsample2d"
        self.upsampler = Resample(out_dim, mode, out_dim, **build) if up_flag else None

    def __call__(
        self, x: Video, feat_cache: Cache | None = None, first_chunk: bool = False
    ) -> Result:
        """Return the output and the caches of resnets and upsampler."""
        run, x_copy = Chain(self, feat_cache), x
        x = run.modules("resnets", self.resnets, x)
        if self.upsampler is not None:
            x = run.module("upsampler", self.upsampler, x)
        if self.avg_shortcut is not None:
            x = add(x, self.avg_shortcut(x_copy, first_chunk))
        return x, run.new_cache


class UpBlock(Module):
    """Resnets and an upsampler that halves the channels, unless it is the last block.

    Source: diffusers 0.42.1, `WanUpBlock`. There is one resnet more than `num_res_blocks`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        num_res_blocks: int,
        dropout: float = 0.0,
        upsample_mode: Mode | None = None,
        **build: Unpack[Build],
    ):
        self.gradient_checkpointing = False
        self.resnets = _resnets(in_dim, out_dim, num_res_blocks + 1, dropout, build)
        modes = () if upsample_mode is None else (upsample_mode,)
        self.upsamplers = nnx.List(Resample(out_dim, mode, **build) for mode in modes)

    def __call__(
        self, x: Video, feat_cache: Cache | None = None, first_chunk: bool = False
    ) -> Result:
        """Return the output and the caches of resnets and upsampler; the first chunk is alike."""
        run = Chain(self, feat_cache)
        x = run.modules("upsamplers", self.upsamplers, run.modules("resnets", self.resnets, x))
        return x, run.new_cache
