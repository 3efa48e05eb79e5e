"""The encoder and the decoder: one chunk of frames at a time, with the caches for the next.

Source: diffusers 0.42.1, `autoencoder_kl_wan.py`.
"""

from itertools import pairwise
from typing import Any, Unpack

from flax import nnx

from jaxvae.layers.activations import SiLU
from jaxvae.layers.convolution import Build, Cache
from jaxvae.layers.norms import RMSNorm
from jaxvae.layers.scopes import Module
from jaxvae.models.wan.blocks import (
    AttentionBlock,
    Chain,
    MidBlock,
    ResidualBlock,
    ResidualDownBlock,
    ResidualUpBlock,
    Result,
    UpBlock,
)
from jaxvae.models.wan.causal_convolution import CausalConv3d
from jaxvae.models.wan.config import WanVAEConfig
from jaxvae.models.wan.resampling import Mode, Resample
from jaxvae.run.steps import Video


class Encoder3d(Module):
    """Video to moments: mean and log variance by channel.

    Source: diffusers 0.42.1, `WanEncoder3d`. `attn_scales` puts attention after the resnets of a
    level that is at such a scale, 1 at first and half after every downsampling, unless the blocks
    are residual ones. diffusers builds such a model and fails at `encode`, where it passes caches
    to the attention; it runs here.
    """

    def __init__(self, config: WanVAEConfig, **build: Unpack[Build]):
        """Build from the model's configuration."""
        self.gradient_checkpointing = False
        self.nonlinearity = SiLU()
        dims = [config.base_dim * factor for factor in (1, *config.dim_mult)]
        self.conv_in = CausalConv3d(config.in_channels, dims[0], 3, padding=1, **build)
        blocks: list[Any] = []
        last, count, dropout = len(dims) - 2, config.num_res_blocks, config.dropout
        for i, (in_dim, out_dim) in enumerate(pairwise(dims)):
            down = i < last
            shorter = down and config.temperal_downsample[i]
            if config.is_residual:
                block = ResidualDownBlock(in_dim, out_dim, dropout, count, shorter, down, **build)
                blocks.append(block)
                continue
            for dim in [in_dim] + [out_dim] * (count - 1):
                blocks.append(ResidualBlock(dim, out_dim, dropout, **build))
                if 0.5**i in config.attn_scales:
                    blocks.append(AttentionBlock(out_dim, **build))
            if down:
                mode: Mode = "downsample3d" if shorter else "downsample2d"
                blocks.append(Resample(out_dim, mode, **build))
        self.down_blocks = nnx.List(blocks)
        self.mid_block = MidBlock(dims[-1], dropout, **build)
        self.norm_out = RMSNorm(dims[-1], images=False, dtype=build["dtype"])
        self.conv_out = CausalConv3d(dims[-1], 2 * config.z_dim, 3, padding=1, **build)

    def __call__(self, x: Video, feat_cache: Cache | None = None) -> Result:
        """Return the moments of one chunk and the caches for the next."""
        run = Chain(self, feat_cache)
        x = run.conv("conv_in", x)
        for i, layer in enumerate(self.down_blocks):
            attends = isinstance(layer, AttentionBlock)
            x = layer(x) if attends else run.module(f"down_blocks.{i}", layer, x)
        x = run.module("mid_block", self.mid_block, x)
        x = run.conv("conv_out", self.nonlinearity(self.norm_out(x)))
        return x, run.new_cache


class Decoder3d(Module):
    """Latent to video.

    Source: diffusers 0.42.1, `WanDecoder3d`. Quirk of the source, kept: `attn_scales` does not
    reach the decoder.
    """

    def __init__(self, config: WanVAEConfig, **build: Unpack[Build]):
        """Build from the model's configuration."""
        self.nonlinearity = SiLU()
        dim = config.decoder_base_dim or config.base_dim
        factors = config.dim_mult[::-1]
        dims = [dim * factor for factor in (factors[0], *factors)]
        self.conv_in = CausalConv3d(config.z_dim, dims[0], 3, padding=1, **build)
        self.mid_block = MidBlock(dims[0], config.dropout, **build)
        blocks: list[ResidualUpBlock | UpBlock] = []
        temperal_upsample = config.temperal_downsample[::-1]
        last, count, dropout = len(factors) - 1, config.num_res_blocks, config.dropout
        for i, (in_dim, out_dim) in enumerate(pairwise(dims)):
            up = i < last
            longer = up and temperal_upsample[i]
            if config.is_residual:
                blocks.append(ResidualUpBlock(in_dim, out_dim, count, dropout, longer, up, **build))
                continue
            mode: Mode | None = ("upsample3d" if longer else "upsample2d") if up else None
            halved = in_dim // 2 if i > 0 else in_dim  # by the upsampler of the block before
            blocks.append(UpBlock(halved, out_dim, count, dropout, mode, **build))
        self.up_blocks = nnx.List(blocks)
        self.norm_out = RMSNorm(dims[-1], images=False, dtype=build["dtype"])
        self.conv_out = CausalConv3d(dims[-1], config.out_channels, 3, padding=1, **build)

    def __call__(
        self, x: Video, feat_cache: Cache | None = None, first_chunk: bool = False
    ) -> Result:
        """Return the frames of one chunk and the caches for the next."""
        run = Chain(self, feat_cache)
        x = run.module("mid_block", self.mid_block, run.conv("conv_in", x))
        for i, block in enumerate(self.up_blocks):
            x = run.module(f"up_blocks.{i}", block, x, first_chunk)
        x = run.conv("conv_out", self.nonlinearity(self.norm_out(x)))
        return x, run.new_cache
