"""Resnets, and the down, mid and up blocks made of them and of attention.

Source: diffusers 0.42.1, `resnet.py` and `unet_2d_blocks.py`. Arguments that `AutoencoderKL` never
gives otherwise than they are by default are left out: a time embedding, an output scale.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.activations import Dropout, get_activation
from jaxvae.layers.convolution import Build, Conv2d
from jaxvae.layers.norms import GroupNorm
from jaxvae.layers.rounding import add
from jaxvae.layers.scopes import Module
from jaxvae.models.kl.attention import Attention, Image
from jaxvae.models.kl.resampling import Downsample2D, Upsample2D
from jaxvae.run.gradient_checkpointing import call


class ResnetBlock2D(Module):
    """Two normalised, activated convolutions beside a shortcut.

    Source: diffusers 0.42.1, `ResnetBlock2D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dropout: float = 0.0,
        groups: int = 32,
        eps: float = 1e-6,
        non_linearity: str = "swish",
        **build: Unpack[Build],
    ):
        self.norm1 = GroupNorm(groups, in_channels, eps, dtype=build["dtype"])
        self.conv1 = Conv2d(in_channels, out_channels, 3, padding=1, **build)
        self.norm2 = GroupNorm(groups, out_channels, eps, dtype=build["dtype"])
        self.dropout = Dropout(dropout, rngs=build["rngs"])
        self.conv2 = Conv2d(out_channels, out_channels, 3, padding=1, **build)
        self.nonlinearity = get_activation(non_linearity)
        changes = in_channels != out_channels
        self.conv_shortcut = Conv2d(in_channels, out_channels, 1, **build) if changes else None

    def __call__(self, input_tensor: Image) -> Float[Array, "b h w dout"]:
        """Return the output, of the same height and width."""
        x = self.conv1(self.nonlinearity(self.norm1(input_tensor)))
        x = self.conv2(self.dropout(self.nonlinearity(self.norm2(x))))
        if self.conv_shortcut is not None:
            input_tensor = self.conv_shortcut(input_tensor)
        return add(input_tensor, x)


class DownEncoderBlock2D(Module):
    """Resnets, then a downsampler unless it is the last block.

    Source: diffusers 0.42.1, `DownEncoderBlock2D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dropout: float = 0.0,
        num_layers: int = 1,
        resnet_eps: float = 1e-6,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        add_downsample: bool = True,
        downsample_padding: int = 1,
        **build: Unpack[Build],
    ):
        channels = [in_channels] + [out_channels] * num_layers
        resnet = (dropout, resnet_groups, resnet_eps, resnet_act_fn)
        self.resnets = _resnets(channels, resnet, build)
        self.downsamplers: nnx.List[Downsample2D] | None
        if add_downsample:
            sampler = Downsample2D(out_channels, out_channels, downsample_padding, **build)
            self.downsamplers = nnx.List([sampler])
        else:
            self.downsamplers = None

    def __call__(self, hidden_states: Image) -> Float[Array, "b h2 w2 c2"]:
        """Return the output, half as large."""
        return _run(self, hidden_states, self.downsamplers)


class AttnDownEncoderBlock2D(DownEncoderBlock2D):
    """The same, with attention behind every resnet.

    Source: diffusers 0.42.1, `AttnDownEncoderBlock2D`.
    """

    def __init__(self, in_channels: int, out_channels: int, num_layers: int = 1, **options: Any):
        super().__init__(in_channels, out_channels, num_layers=num_layers, **options)
        self.attentions = _attentions(out_channels, num_layers, **options)


class UNetMidBlock2D(Module):
    """A resnet, then attention and a resnet; attention only with `add_attention`.

    Source: diffusers 0.42.1, `UNetMidBlock2D`.
    """

    def __init__(
        self,
        in_channels: int,
        dropout: float = 0.0,
        num_layers: int = 1,
        resnet_eps: float = 1e-6,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        add_attention: bool = True,
        **build: Unpack[Build],
    ):
        self.gradient_checkpointing = False
        resnet = (dropout, resnet_groups, resnet_eps, resnet_act_fn)
        self.resnets = _resnets([in_channels] * (num_layers + 2), resnet, build)
        options = {"resnet_groups": resnet_groups, "resnet_eps": resnet_eps, **build}
        self.attentions = _attentions(in_channels, num_layers if add_attention else 0, **options)

    def __call__(self, hidden_states: Image) -> Image:
        """Return the output, of the same size."""
        first, *others = self.resnets
        x = first(hidden_states)
        for i, resnet in enumerate(others):
            if self.attentions:
                x = self.attentions[i](x)
            x = call(resnet, self.gradient_checkpointing, x)
        return x


class UpDecoderBlock2D(Module):
    """Resnets, then an upsampler unless it is the last block.

    Source: diffusers 0.42.1, `UpDecoderBlock2D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dropout: float = 0.0,
        num_layers: int = 1,
        resnet_eps: float = 1e-6,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        add_upsample: bool = True,
        **build: Unpack[Build],
    ):
        channels = [in_channels] + [out_channels] * num_layers
        resnet = (dropout, resnet_groups, resnet_eps, resnet_act_fn)
        self.resnets = _resnets(channels, resnet, build)
        self.upsamplers: nnx.List[Upsample2D] | None
        if add_upsample:
            self.upsamplers = nnx.List([Upsample2D(out_channels, out_channels, **build)])
        else:
            self.upsamplers = None

    def __call__(self, hidden_states: Image) -> Float[Array, "b h2 w2 c2"]:
        """Return the output, twice as large."""
        return _run(self, hidden_states, self.upsamplers)


class AttnUpDecoderBlock2D(UpDecoderBlock2D):
    """The same, with attention behind every resnet.

    Source: diffusers 0.42.1, `AttnUpDecoderBlock2D`.
    """

    def __init__(self, in_channels: int, out_channels: int, num_layers: int = 1, **options: Any):
        super().__init__(in_channels, out_channels, num_layers=num_layers, **options)
        self.attentions = _attentions(out_channels, num_layers, **options)


def _resnets(
    channels: Sequence[int], resnet: tuple[float, int, float, str], build: Build
) -> nnx.List[ResnetBlock2D]:
    pairs = zip(channels, channels[1:], strict=False)
    return nnx.List(ResnetBlock2D(before, after, *resnet, **build) for before, after in pairs)


def _attentions(channels: int, count: int, **options: Any) -> nnx.List[Attention]:
    """As many as resnets, each of one head."""
    build: Build = {name: options[name] for name in Build.__annotations__}  # type: ignore[assignment]
    groups, eps = options["resnet_groups"], options["resnet_eps"]
    return nnx.List(
        Attention(channels, 1, channels, norm_num_groups=groups, eps=eps, **build)
        for _ in range(count)
    )


def _run(block: Any, x: Image, samplers: Sequence[Any] | None) -> Float[Array, "b h2 w2 c2"]:
    """Run resnets, each with its attention where the block has it, then the sampler."""
    attentions = getattr(block, "attentions", None)
    for i, resnet in enumerate(block.resnets):
        x = resnet(x)
        if attentions is not None:
            x = attentions[i](x)
    for sampler in samplers or ():
        x = sampler(x)
    return x
