"""The encoder and the decoder: one chunk of frames at a time, with the caches for the next.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`.
"""

from typing import Any, Unpack

from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import SiLU
from jaxvae.layers.convolution import Build, Cache
from jaxvae.layers.norms import GroupNorm
from jaxvae.layers.scopes import Module
from jaxvae.models.cogvideox.blocks import DownBlock3D, MidBlock3D, Temb, UpBlock3D
from jaxvae.models.cogvideox.causal_convolution import CausalConv3d
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.models.cogvideox.spatial_norm import SpatialNorm3D
from jaxvae.run.steps import Video


def _resnet_options(config: CogVideoXVAEConfig, build: Build) -> dict[str, Any]:
    return {
        "temb_channels": 0,
        "resnet_eps": config.norm_eps,
        "resnet_act_fn": config.act_fn,
        "resnet_groups": config.norm_num_groups,
        **build,
    }


class Encoder3D(Module):
    """Video to moments: mean and log variance by channel.

    Source: diffusers 0.42.1, `CogVideoXEncoder3D`. Quirks of the source, kept: the down blocks do
    not get `pad_mode`, `norm_eps` does not reach `norm_out` (always 1e-6) and `act_fn` does not
    reach `conv_act` (always SiLU).
    """

    def __init__(
        self,
        config: CogVideoXVAEConfig,
        dropout: float = 0.0,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Build from the model's configuration; `dropout` and `pad_mode` are not part of it."""
        channels = config.block_out_channels
        groups, resnets = config.norm_num_groups, _resnet_options(config, build)
        self.conv_in = CausalConv3d(config.in_channels, channels[0], 3, pad_mode=pad_mode, **build)
        self.down_blocks = nnx.List[DownBlock3D]([])
        for i in range(len(channels)):
            self.down_blocks.append(
                DownBlock3D(
                    channels[max(i - 1, 0)],
                    channels[i],
                    dropout=dropout,
                    num_layers=config.layers_per_block,
                    add_downsample=i < len(channels) - 1,
                    compress_time=i < config.time_levels,
                    **resnets,
                )
            )
        self.mid_block = MidBlock3D(
            channels[-1],
            dropout=dropout,
            num_layers=2,
            pad_mode=pad_mode,
            **resnets,
        )
        self.norm_out = GroupNorm(groups, channels[-1], eps=1e-6, dtype=build["dtype"])
        self.conv_act = SiLU()
        moments = 2 * config.latent_channels
        self.conv_out = CausalConv3d(channels[-1], moments, 3, pad_mode=pad_mode, **build)

    def __call__(
        self, sample: Video, temb: Temb | None = None, conv_cache: Cache | None = None
    ) -> tuple[Float[Array, "b t2 h2 w2 moments"], Cache]:
        """Return the moments of one chunk and the caches for the next."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        x, new_cache["conv_in"] = self.conv_in(sample, conv_cache=conv_cache.get("conv_in"))
        for i, block in enumerate(self.down_blocks):
            key = f"down_block_{i}"
            x, new_cache[key] = block(x, temb, None, conv_cache.get(key))
        x, new_cache["mid_block"] = self.mid_block(
            x, temb, None, conv_cache=conv_cache.get("mid_block")
        )
        x = self.conv_act(self.norm_out(x))
        x, new_cache["conv_out"] = self.conv_out(x, conv_cache=conv_cache.get("conv_out"))
        return x, new_cache


class Decoder3D(Module):
    """Latent to video.

    Source: diffusers 0.42.1, `CogVideoXDecoder3D`. Every norm is conditioned on the decoder's own
    input. Quirks of the source, kept: the mid block does not get `dropout`, an up block has
    `layers_per_block + 1` resnets, and `norm_eps` reaches nothing.
    """

    def __init__(
        self,
        config: CogVideoXVAEConfig,
        dropout: float = 0.0,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Build from the model's configuration; `dropout` and `pad_mode` are not part of it."""
        channels = config.block_out_channels[::-1]
        groups, latent = config.norm_num_groups, config.latent_channels
        resnets = _resnet_options(config, build)
        self.conv_in = CausalConv3d(latent, channels[0], 3, pad_mode=pad_mode, **build)
        self.mid_block = MidBlock3D(
            channels[0],
            num_layers=2,
            spatial_norm_dim=latent,
            pad_mode=pad_mode,
            **resnets,
        )
        self.up_blocks = nnx.List[UpBlock3D]([])
        for i in range(len(channels)):
            self.up_blocks.append(
                UpBlock3D(
                    channels[max(i - 1, 0)],
                    channels[i],
                    dropout=dropout,
                    num_layers=config.layers_per_block + 1,
                    spatial_norm_dim=latent,
                    add_upsample=i < len(channels) - 1,
                    compress_time=i < config.time_levels,
                    pad_mode=pad_mode,
                    **resnets,
                )
            )
        self.norm_out = SpatialNorm3D(channels[-1], latent, groups, **build)
        self.conv_act = SiLU()
        self.conv_out = CausalConv3d(
            channels[-1], config.out_channels, 3, pad_mode=pad_mode, **build
        )

    def __call__(
        self, sample: Video, temb: Temb | None = None, conv_cache: Cache | None = None
    ) -> tuple[Float[Array, "b t2 h2 w2 dout"], Cache]:
        """Return the frames of one chunk and the caches for the next."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        x, new_cache["conv_in"] = self.conv_in(sample, conv_cache=conv_cache.get("conv_in"))
        x, new_cache["mid_block"] = self.mid_block(
            x, temb, sample, conv_cache=conv_cache.get("mid_block")
        )
        for i, block in enumerate(self.up_blocks):
            key = f"up_block_{i}"
            x, new_cache[key] = block(x, temb, sample, conv_cache=conv_cache.get(key))
        x, new_cache["norm_out"] = self.norm_out(x, sample, conv_cache=conv_cache.get("norm_out"))
        x = self.conv_act(x)
        x, new_cache["conv_out"] = self.conv_out(x, conv_cache=conv_cache.get("conv_out"))
        return x, new_cache
