"""The blocks of the model: samplers, resnets, down, mid and up blocks, encoder, decoder.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`, `downsampling.py`, `upsampling.py`.
Attribute and argument names, and the keys of every cache, are those of the source.
"""

from typing import Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvae.config import DOWN_BLOCK, UP_BLOCK, CogVideoXVAEConfig
from jaxvae.layers import (
    Build,
    Cache,
    CausalConv3d,
    Conv2d,
    Conv3d,
    Dropout,
    GroupNorm,
    Linear,
    SiLU,
    SpatialNorm3D,
    get_activation,
    nearest_resize,
)

Video = Float[Array, "b t h w c"]
Temb = Float[Array, "b temb"]


class Downsample3D(nnx.Module):
    """Halve height and width, and the frames where `compress_time`.

    Source: diffusers 0.42.1, `CogVideoXDownsample3D`. Frames are averaged in pairs; an odd count
    keeps frame 0 as it is: 9 frames give 1 + 4, 8 give 4, 1 gives 1. Then one row of zeros at the
    bottom and one column at the right, and a convolution with stride 2: 17 -> 8 -> 4 -> 2.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 2,
        padding: int = 0,
        compress_time: bool = False,
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments."""
        self.conv = Conv2d(in_channels, out_channels, kernel_size, stride, padding, **build)
        self.compress_time = compress_time

    def __call__(self, x: Video) -> Float[Array, "b t2 h2 w2 c2"]:
        """Return the smaller video."""
        if self.compress_time:
            odd = x.shape[1] % 2
            batch, _, *rest = x.shape
            pairs = x[:, odd:].reshape(batch, x.shape[1] // 2, 2, *rest)
            x = jnp.concatenate([x[:, :odd], jnp.mean(pairs, axis=2)], axis=1)
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))
        batch, frames, *image = x.shape
        x = self.conv(x.reshape(batch * frames, *image))
        return x.reshape(batch, frames, *x.shape[1:])


class Upsample3D(nnx.Module):
    """Double height and width, and the frames where `compress_time`.

    Source: diffusers 0.42.1, `CogVideoXUpsample3D`. With `compress_time` the first of an odd number
    of frames is doubled in space only: 3 frames give 1 + 4, 2 give 4, and 1 gives 1, so decoding
    frame by frame is another function than decoding a chunk.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 1,
        compress_time: bool = False,
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments."""
        self.conv = Conv2d(in_channels, out_channels, kernel_size, stride, padding, **build)
        self.compress_time = compress_time

    def __call__(self, inputs: Video) -> Float[Array, "b t2 h2 w2 c2"]:
        """Return the larger video."""
        batch, frames, height, width, _ = inputs.shape
        size = (2 * height, 2 * width)
        if not self.compress_time or frames == 1:
            x = nearest_resize(inputs, (frames, *size))
        elif frames % 2:
            first = nearest_resize(inputs[:, :1], (1, *size))
            rest = nearest_resize(inputs[:, 1:], (2 * (frames - 1), *size))
            x = jnp.concatenate([first, rest], axis=1)
        else:
            x = nearest_resize(inputs, (2 * frames, *size))
        frames = x.shape[1]
        x = self.conv(x.reshape(batch * frames, *x.shape[2:]))
        return x.reshape(batch, frames, *x.shape[1:])


class ResnetBlock3D(nnx.Module):
    """Two normalised, activated causal convolutions beside a shortcut.

    Source: diffusers 0.42.1, `CogVideoXResnetBlock3D`. `spatial_norm_dim` chooses SpatialNorm3D,
    and then `zq` must be given. The time embedding passes through the same activation, then
    `temb_proj`, which exists only where `temb_channels > 0`. `conv_shortcut=True` makes the
    shortcut a causal 3x3x3 convolution instead of a plain 1x1x1 one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        temb_channels: int = 512,
        groups: int = 32,
        eps: float = 1e-6,
        non_linearity: str = "swish",
        conv_shortcut: bool = False,
        spatial_norm_dim: int | None = None,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments. `eps` does not reach a SpatialNorm3D, as in the source."""
        out_channels = out_channels or in_channels
        self.nonlinearity = get_activation(non_linearity)
        self.norm1: GroupNorm | SpatialNorm3D
        self.norm2: GroupNorm | SpatialNorm3D
        if spatial_norm_dim is None:
            self.norm1 = GroupNorm(groups, in_channels, eps, dtype=build["dtype"])
            self.norm2 = GroupNorm(groups, out_channels, eps, dtype=build["dtype"])
        else:
            self.norm1 = SpatialNorm3D(in_channels, spatial_norm_dim, groups, **build)
            self.norm2 = SpatialNorm3D(out_channels, spatial_norm_dim, groups, **build)
        self.conv1 = CausalConv3d(in_channels, out_channels, 3, pad_mode=pad_mode, **build)
        self.temb_proj = Linear(temb_channels, out_channels, **build) if temb_channels > 0 else None
        self.dropout = Dropout(dropout, rngs=build["rngs"])
        self.conv2 = CausalConv3d(out_channels, out_channels, 3, pad_mode=pad_mode, **build)
        self.conv_shortcut: CausalConv3d | Conv3d | None
        if in_channels == out_channels:
            self.conv_shortcut = None
        elif conv_shortcut:
            self.conv_shortcut = CausalConv3d(
                in_channels, out_channels, 3, pad_mode=pad_mode, **build
            )
        else:
            self.conv_shortcut = Conv3d(in_channels, out_channels, 1, **build)

    def __call__(
        self,
        inputs: Float[Array, "b t h w din"],
        temb: Temb | None = None,
        zq: Float[Array, "b tz hz wz cz"] | None = None,
        conv_cache: Cache | None = None,
    ) -> tuple[Float[Array, "b t h w dout"], Cache]:
        """Return the output and the caches of its convolutions."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}

        def normalise(name: str, x: Array) -> Array:
            norm = getattr(self, name)
            if isinstance(norm, GroupNorm):
                return norm(x)
            if zq is None:
                raise ValueError(f"ResnetBlock3D: {name} is a SpatialNorm3D and needs `zq`")
            x, new_cache[name] = norm(x, zq, conv_cache=conv_cache.get(name))
            return x

        x = self.nonlinearity(normalise("norm1", inputs))
        x, new_cache["conv1"] = self.conv1(x, conv_cache=conv_cache.get("conv1"))
        if temb is not None:
            if self.temb_proj is None:
                raise ValueError("ResnetBlock3D: `temb` was given to a block with temb_channels=0")
            x = x + self.temb_proj(self.nonlinearity(temb))[:, None, None, None, :]
        x = self.nonlinearity(normalise("norm2", x))
        x = self.dropout(x)
        x, new_cache["conv2"] = self.conv2(x, conv_cache=conv_cache.get("conv2"))
        if isinstance(self.conv_shortcut, CausalConv3d):
            inputs, new_cache["conv_shortcut"] = self.conv_shortcut(
                inputs, conv_cache=conv_cache.get("conv_shortcut")
            )
        elif self.conv_shortcut is not None:
            inputs = self.conv_shortcut(inputs)
        return x + inputs, new_cache


class DownBlock3D(nnx.Module):
    """Resnets, then a downsampler unless it is the last block.

    Source: diffusers 0.42.1, `CogVideoXDownBlock3D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        temb_channels: int,
        dropout: float = 0.0,
        num_layers: int = 1,
        resnet_eps: float = 1e-6,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        add_downsample: bool = True,
        downsample_padding: int = 0,
        compress_time: bool = False,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments."""
        self.resnets = nnx.List(
            ResnetBlock3D(
                in_channels if i == 0 else out_channels,
                out_channels,
                dropout=dropout,
                temb_channels=temb_channels,
                groups=resnet_groups,
                eps=resnet_eps,
                non_linearity=resnet_act_fn,
                pad_mode=pad_mode,
                **build,
            )
            for i in range(num_layers)
        )
        self.downsamplers: nnx.List[Downsample3D] | None
        if add_downsample:
            sampler = Downsample3D(
                out_channels,
                out_channels,
                padding=downsample_padding,
                compress_time=compress_time,
                **build,
            )
            self.downsamplers = nnx.List([sampler])
        else:
            self.downsamplers = None

    def __call__(
        self,
        hidden_states: Video,
        temb: Temb | None = None,
        zq: Video | None = None,
        conv_cache: Cache | None = None,
    ) -> tuple[Float[Array, "b t2 h2 w2 c2"], Cache]:
        """Return the output and the caches of the resnets."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        for i, resnet in enumerate(self.resnets):
            key = f"resnet_{i}"
            hidden_states, new_cache[key] = resnet(
                hidden_states, temb, zq, conv_cache=conv_cache.get(key)
            )
        for downsampler in self.downsamplers or ():
            hidden_states = downsampler(hidden_states)
        return hidden_states, new_cache


class MidBlock3D(nnx.Module):
    """Resnets that change neither size nor channels.

    Source: diffusers 0.42.1, `CogVideoXMidBlock3D`.
    """

    def __init__(
        self,
        in_channels: int,
        temb_channels: int,
        dropout: float = 0.0,
        num_layers: int = 1,
        resnet_eps: float = 1e-6,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        spatial_norm_dim: int | None = None,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments."""
        self.resnets = nnx.List(
            ResnetBlock3D(
                in_channels,
                in_channels,
                dropout=dropout,
                temb_channels=temb_channels,
                groups=resnet_groups,
                eps=resnet_eps,
                non_linearity=resnet_act_fn,
                spatial_norm_dim=spatial_norm_dim,
                pad_mode=pad_mode,
                **build,
            )
            for _ in range(num_layers)
        )

    def __call__(
        self,
        hidden_states: Video,
        temb: Temb | None = None,
        zq: Float[Array, "b tz hz wz cz"] | None = None,
        conv_cache: Cache | None = None,
    ) -> tuple[Video, Cache]:
        """Return the output and the caches of the resnets."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        for i, resnet in enumerate(self.resnets):
            key = f"resnet_{i}"
            hidden_states, new_cache[key] = resnet(
                hidden_states, temb, zq, conv_cache=conv_cache.get(key)
            )
        return hidden_states, new_cache


class UpBlock3D(nnx.Module):
    """Resnets with spatial norms, then an upsampler unless it is the last block.

    Source: diffusers 0.42.1, `CogVideoXUpBlock3D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        temb_channels: int,
        dropout: float = 0.0,
        num_layers: int = 1,
        resnet_eps: float = 1e-6,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        spatial_norm_dim: int | None = 16,
        add_upsample: bool = True,
        upsample_padding: int = 1,
        compress_time: bool = False,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments."""
        self.resnets = nnx.List(
            ResnetBlock3D(
                in_channels if i == 0 else out_channels,
                out_channels,
                dropout=dropout,
                temb_channels=temb_channels,
                groups=resnet_groups,
                eps=resnet_eps,
                non_linearity=resnet_act_fn,
                spatial_norm_dim=spatial_norm_dim,
                pad_mode=pad_mode,
                **build,
            )
            for i in range(num_layers)
        )
        self.upsamplers: nnx.List[Upsample3D] | None
        if add_upsample:
            sampler = Upsample3D(
                out_channels,
                out_channels,
                padding=upsample_padding,
                compress_time=compress_time,
                **build,
            )
            self.upsamplers = nnx.List([sampler])
        else:
            self.upsamplers = None

    def __call__(
        self,
        hidden_states: Video,
        temb: Temb | None = None,
        zq: Float[Array, "b tz hz wz cz"] | None = None,
        conv_cache: Cache | None = None,
    ) -> tuple[Float[Array, "b t2 h2 w2 c2"], Cache]:
        """Return the output and the caches of the resnets."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        for i, resnet in enumerate(self.resnets):
            key = f"resnet_{i}"
            hidden_states, new_cache[key] = resnet(
                hidden_states, temb, zq, conv_cache=conv_cache.get(key)
            )
        for upsampler in self.upsamplers or ():
            hidden_states = upsampler(hidden_states)
        return hidden_states, new_cache


class Encoder3D(nnx.Module):
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
        groups = config.norm_num_groups
        self.conv_in = CausalConv3d(config.in_channels, channels[0], 3, pad_mode=pad_mode, **build)
        self.down_blocks = nnx.List[DownBlock3D]([])
        for i, block_type in enumerate(config.down_block_types):
            if block_type != DOWN_BLOCK:
                raise ValueError(f"down_block_types: expected {DOWN_BLOCK}, found {block_type}")
            self.down_blocks.append(
                DownBlock3D(
                    channels[max(i - 1, 0)],
                    channels[i],
                    temb_channels=0,
                    dropout=dropout,
                    num_layers=config.layers_per_block,
                    resnet_eps=config.norm_eps,
                    resnet_act_fn=config.act_fn,
                    resnet_groups=groups,
                    add_downsample=i < len(channels) - 1,
                    compress_time=i < config.time_levels,
                    **build,
                )
            )
        self.mid_block = MidBlock3D(
            channels[-1],
            temb_channels=0,
            dropout=dropout,
            num_layers=2,
            resnet_eps=config.norm_eps,
            resnet_act_fn=config.act_fn,
            resnet_groups=groups,
            pad_mode=pad_mode,
            **build,
        )
        self.norm_out = GroupNorm(groups, channels[-1], eps=1e-6, dtype=build["dtype"])
        self.conv_act = SiLU()
        moments = 2 * config.latent_channels
        self.conv_out = CausalConv3d(channels[-1], moments, 3, pad_mode=pad_mode, **build)

    def __call__(
        self,
        sample: Video,
        temb: Temb | None = None,
        conv_cache: Cache | None = None,
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


class Decoder3D(nnx.Module):
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
        groups = config.norm_num_groups
        latent = config.latent_channels
        self.conv_in = CausalConv3d(latent, channels[0], 3, pad_mode=pad_mode, **build)
        self.mid_block = MidBlock3D(
            channels[0],
            temb_channels=0,
            num_layers=2,
            resnet_eps=config.norm_eps,
            resnet_act_fn=config.act_fn,
            resnet_groups=groups,
            spatial_norm_dim=latent,
            pad_mode=pad_mode,
            **build,
        )
        self.up_blocks = nnx.List[UpBlock3D]([])
        for i, block_type in enumerate(config.up_block_types):
            if block_type != UP_BLOCK:
                raise ValueError(f"up_block_types: expected {UP_BLOCK}, found {block_type}")
            self.up_blocks.append(
                UpBlock3D(
                    channels[max(i - 1, 0)],
                    channels[i],
                    temb_channels=0,
                    dropout=dropout,
                    num_layers=config.layers_per_block + 1,
                    resnet_eps=config.norm_eps,
                    resnet_act_fn=config.act_fn,
                    resnet_groups=groups,
                    spatial_norm_dim=latent,
                    add_upsample=i < len(channels) - 1,
                    compress_time=i < config.time_levels,
                    pad_mode=pad_mode,
                    **build,
                )
            )
        self.norm_out = SpatialNorm3D(channels[-1], latent, groups, **build)
        self.conv_act = SiLU()
        self.conv_out = CausalConv3d(
            channels[-1], config.out_channels, 3, pad_mode=pad_mode, **build
        )

    def __call__(
        self,
        sample: Video,
        temb: Temb | None = None,
        conv_cache: Cache | None = None,
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
