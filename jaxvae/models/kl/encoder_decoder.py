"""The encoder and the decoder of images.

Source: diffusers 0.42.1, `vae.py`. Quirk of the source, kept: `act_fn` does not reach `conv_act`,
which is always SiLU.
"""

from typing import Any, Unpack

from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import SiLU
from jaxvae.layers.convolution import Build, Conv2d
from jaxvae.layers.norms import GroupNorm
from jaxvae.layers.scopes import Module
from jaxvae.models.kl import blocks
from jaxvae.models.kl.attention import Image
from jaxvae.models.kl.config import KLVAEConfig


class Encoder(Module):
    """Image to moments: mean and log variance by channel. Source: diffusers 0.42.1, `Encoder`."""

    def __init__(self, config: KLVAEConfig, **build: Unpack[Build]):
        """Build from the model's configuration."""
        channels = config.block_out_channels
        self.conv_in = Conv2d(config.in_channels, channels[0], 3, padding=1, **build)
        self.down_blocks = _blocks(
            config, config.down_block_types, channels, config.layers_per_block, build
        )
        self.mid_block = _mid_block(config, build)
        self.conv_norm_out = _norm(config, channels[-1], build)
        self.conv_act = SiLU()
        self.conv_out = Conv2d(channels[-1], 2 * config.latent_channels, 3, padding=1, **build)

    def __call__(self, sample: Image) -> Float[Array, "b h2 w2 moments"]:
        """Return the moments."""
        sample = self.conv_in(sample)
        for block in (*self.down_blocks, self.mid_block):
            sample = block(sample)
        return self.conv_out(self.conv_act(self.conv_norm_out(sample)))


class Decoder(Module):
    """Latent to image. Source: diffusers 0.42.1, `Decoder`.

    Quirk of the source, kept: an up block has `layers_per_block + 1` resnets.
    """

    def __init__(self, config: KLVAEConfig, **build: Unpack[Build]):
        """Build from the model's configuration."""
        channels = config.block_out_channels[::-1]
        self.conv_in = Conv2d(config.latent_channels, channels[0], 3, padding=1, **build)
        self.mid_block = _mid_block(config, build)
        self.up_blocks = _blocks(
            config, config.up_block_types, channels, config.layers_per_block + 1, build
        )
        self.conv_norm_out = _norm(config, channels[-1], build)
        self.conv_act = SiLU()
        self.conv_out = Conv2d(channels[-1], config.out_channels, 3, padding=1, **build)

    def __call__(self, sample: Image) -> Float[Array, "b h2 w2 dout"]:
        """Return the image."""
        sample = self.conv_in(sample)
        for block in (self.mid_block, *self.up_blocks):
            sample = block(sample)
        return self.conv_out(self.conv_act(self.conv_norm_out(sample)))


def _blocks(
    config: KLVAEConfig,
    kinds: tuple[str, ...],
    channels: tuple[int, ...],
    layers: int,
    build: Build,
) -> nnx.List[Any]:
    """All but the last with a sampler."""
    shared = (layers, config.act_fn, config.norm_num_groups)
    made = zip(kinds, (channels[0], *channels), channels, strict=False)
    return nnx.List(
        getattr(blocks, kind)(*pair, *shared, i < len(kinds) - 1, **build)
        for i, (kind, *pair) in enumerate(made)
    )


def _mid_block(config: KLVAEConfig, build: Build) -> blocks.UNetMidBlock2D:
    return blocks.UNetMidBlock2D(
        config.block_out_channels[-1],
        config.act_fn,
        config.norm_num_groups,
        config.mid_block_add_attention,
        **build,
    )


def _norm(config: KLVAEConfig, channels: int, build: Build) -> GroupNorm:
    return GroupNorm(config.norm_num_groups, channels, blocks.EPS, dtype=build["dtype"])
