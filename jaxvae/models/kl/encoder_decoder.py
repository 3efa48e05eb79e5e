"""The encoder and the decoder of images.

Source: diffusers 0.42.1, `vae.py`.
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
from jaxvae.run.gradient_checkpointing import call


class Encoder(Module):
    """Image to moments: mean and log variance by channel.

    Source: diffusers 0.42.1, `Encoder`. Quirk of the source, kept: `act_fn` does not reach
    `conv_act`, which is always SiLU.
    """

    def __init__(self, config: KLVAEConfig, **build: Unpack[Build]):
        """Build from the model's configuration."""
        channels = config.block_out_channels
        self.gradient_checkpointing = False
        self.conv_in = Conv2d(config.in_channels, channels[0], 3, padding=1, **build)
        self.down_blocks: nnx.List[Any] = nnx.List([])
        for i, name in enumerate(config.down_block_types):
            block = getattr(blocks, name)(
                channels[max(i - 1, 0)],
                channels[i],
                num_layers=config.layers_per_block,
                resnet_eps=1e-6,
                resnet_act_fn=config.act_fn,
                resnet_groups=config.norm_num_groups,
                add_downsample=i < len(channels) - 1,
                downsample_padding=0,
                **build,
            )
            self.down_blocks.append(block)
        self.mid_block = _mid_block(config, build)
        self.conv_norm_out = GroupNorm(
            config.norm_num_groups, channels[-1], eps=1e-6, dtype=build["dtype"]
        )
        self.conv_act = SiLU()
        self.conv_out = Conv2d(channels[-1], 2 * config.latent_channels, 3, padding=1, **build)

    def __call__(self, sample: Image) -> Float[Array, "b h2 w2 moments"]:
        """Return the moments."""
        sample = self.conv_in(sample)
        for block in (*self.down_blocks, self.mid_block):
            sample = call(block, self.gradient_checkpointing, sample)
        return self.conv_out(self.conv_act(self.conv_norm_out(sample)))


class Decoder(Module):
    """Latent to image.

    Source: diffusers 0.42.1, `Decoder`. Quirks of the source, kept: an up block has
    `layers_per_block + 1` resnets, and `act_fn` does not reach `conv_act`.
    """

    def __init__(self, config: KLVAEConfig, **build: Unpack[Build]):
        """Build from the model's configuration."""
        channels = config.block_out_channels[::-1]
        self.gradient_checkpointing = False
        self.conv_in = Conv2d(config.latent_channels, channels[0], 3, padding=1, **build)
        self.mid_block = _mid_block(config, build)
        self.up_blocks: nnx.List[Any] = nnx.List([])
        for i, name in enumerate(config.up_block_types):
            block = getattr(blocks, name)(
                channels[max(i - 1, 0)],
                channels[i],
                num_layers=config.layers_per_block + 1,
                resnet_eps=1e-6,
                resnet_act_fn=config.act_fn,
                resnet_groups=config.norm_num_groups,
                add_upsample=i < len(channels) - 1,
                **build,
            )
            self.up_blocks.append(block)
        self.conv_norm_out = GroupNorm(
            config.norm_num_groups, channels[-1], eps=1e-6, dtype=build["dtype"]
        )
        self.conv_act = SiLU()
        self.conv_out = Conv2d(channels[-1], config.out_channels, 3, padding=1, **build)

    def __call__(self, sample: Image) -> Float[Array, "b h2 w2 dout"]:
        """Return the image."""
        sample = self.conv_in(sample)
        for block in (self.mid_block, *self.up_blocks):
            sample = call(block, self.gradient_checkpointing, sample)
        return self.conv_out(self.conv_act(self.conv_norm_out(sample)))


def _mid_block(config: KLVAEConfig, build: Build) -> blocks.UNetMidBlock2D:
    return blocks.UNetMidBlock2D(
        config.block_out_channels[-1],
        resnet_eps=1e-6,
        resnet_act_fn=config.act_fn,
        resnet_groups=config.norm_num_groups,
        add_attention=config.mid_block_add_attention,
        **build,
    )
