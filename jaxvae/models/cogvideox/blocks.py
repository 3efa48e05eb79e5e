"""Resnets, and the down, mid and up blocks made of them.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`. Attribute and argument names, and the keys
of every cache, are those of the source.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Unpack

from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import Dropout, get_activation
from jaxvae.layers.convolution import Build, Cache, Conv3d, Linear
from jaxvae.layers.norms import GroupNorm
from jaxvae.layers.rounding import add
from jaxvae.layers.scopes import Module
from jaxvae.models.cogvideox.causal_convolution import CausalConv3d
from jaxvae.models.cogvideox.resampling import Downsample3D, Upsample3D
from jaxvae.models.cogvideox.spatial_norm import SpatialNorm3D
from jaxvae.run.gradient_checkpointing import call
from jaxvae.run.steps import Video

Temb = Float[Array, "b temb"]


class ResnetBlock3D(Module):
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
            x = add(x, self.temb_proj(self.nonlinearity(temb))[:, None, None, None, :])
        x = self.nonlinearity(normalise("norm2", x))
        x = self.dropout(x)
        x, new_cache["conv2"] = self.conv2(x, conv_cache=conv_cache.get("conv2"))
        if isinstance(self.conv_shortcut, CausalConv3d):
            inputs, new_cache["conv_shortcut"] = self.conv_shortcut(
                inputs, conv_cache=conv_cache.get("conv_shortcut")
            )
        elif self.conv_shortcut is not None:
            inputs = self.conv_shortcut(inputs)
        return add(x, inputs), new_cache


class Block(Module):
    """Resnets, then samplers if it has any: what a down, a mid and an up block have in common."""

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
        spatial_norm_dim: int | None = None,
        pad_mode: str = "first",
        **build: Unpack[Build],
    ):
        """Take PyTorch's arguments; the first resnet changes the channels."""
        self.gradient_checkpointing = False
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
            hidden_states, new_cache[key] = call(
                resnet, self.gradient_checkpointing, hidden_states, temb, zq, conv_cache.get(key)
            )
        for sampler in self.samplers():
            hidden_states = sampler(hidden_states)
        return hidden_states, new_cache

    def samplers(self) -> Iterable[Any]:
        """Return what changes the size behind the resnets."""
        return ()


class DownBlock3D(Block):
    """Resnets, then a downsampler unless it is the last block.

    Source: diffusers 0.42.1, `CogVideoXDownBlock3D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        temb_channels: int,
        *,
        add_downsample: bool = True,
        downsample_padding: int = 0,
        compress_time: bool = False,
        **options: Any,
    ):
        """Take PyTorch's arguments; `options` are those of `Block`."""
        super().__init__(in_channels, out_channels, temb_channels, **options)
        sampler = partial(Downsample3D, padding=downsample_padding, compress_time=compress_time)
        self.downsamplers = _sampler(sampler, out_channels, options) if add_downsample else None

    def samplers(self) -> Iterable[Any]:
        """Return the downsampler, if there is one."""
        return self.downsamplers or ()


class MidBlock3D(Block):
    """Resnets that change neither size nor channels.

    Source: diffusers 0.42.1, `CogVideoXMidBlock3D`.
    """

    def __init__(self, in_channels: int, temb_channels: int, **options: Any):
        """Take PyTorch's arguments; `options` are those of `Block`."""
        super().__init__(in_channels, in_channels, temb_channels, **options)


class UpBlock3D(Block):
    """Resnets with spatial norms, then an upsampler unless it is the last block.

    Source: diffusers 0.42.1, `CogVideoXUpBlock3D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        temb_channels: int,
        *,
        spatial_norm_dim: int | None = 16,
        add_upsample: bool = True,
        upsample_padding: int = 1,
        compress_time: bool = False,
        **options: Any,
    ):
        """Take PyTorch's arguments; `options` are those of `Block`."""
        options["spatial_norm_dim"] = spatial_norm_dim
        super().__init__(in_channels, out_channels, temb_channels, **options)
        sampler = partial(Upsample3D, padding=upsample_padding, compress_time=compress_time)
        self.upsamplers = _sampler(sampler, out_channels, options) if add_upsample else None

    def samplers(self) -> Iterable[Any]:
        """Return the upsampler, if there is one."""
        return self.upsamplers or ()


def _sampler(kind: Any, channels: int, options: dict[str, Any]) -> nnx.List[Any]:
    build = {name: options[name] for name in Build.__annotations__}
    return nnx.List([kind(channels, channels, **build)])
