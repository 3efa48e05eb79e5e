"""Resnets, and the down, mid and up blocks made of them and of attention.

Source: diffusers 0.42.1, `resnet.py` and `unet_2d_blocks.py`. Arguments that `AutoencoderKL` gives
to all of them alike are left out: no time embedding, no output scale, no dropout, one head.
"""

from itertools import pairwise
from typing import ClassVar, Unpack

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

EPS = 1e-6
"""Of every norm of the model."""


class ResnetBlock2D(Module):
    """Two normalised, activated convolutions beside a shortcut.

    Source: diffusers 0.42.1, `ResnetBlock2D`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        groups: int = 32,
        non_linearity: str = "swish",
        **build: Unpack[Build],
    ):
        self.norm1 = GroupNorm(groups, in_channels, EPS, dtype=build["dtype"])
        self.conv1 = Conv2d(in_channels, out_channels, 3, padding=1, **build)
        self.norm2 = GroupNorm(groups, out_channels, EPS, dtype=build["dtype"])
        self.dropout = Dropout(0.0, rngs=build["rngs"])
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
        output: Array = add(input_tensor, x)
        return output


class Resnets(Module):
    """Resnets, with attention behind each if the class `attends`, then a sampler if there is one.

    Source: diffusers 0.42.1: what the four classes below have in common.
    """

    attends: ClassVar[bool] = False
    samplers: ClassVar[str]
    """The attribute that holds the sampler."""
    sampler: ClassVar[type[Downsample2D | Upsample2D]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_layers: int = 1,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        add_sampler: bool = True,
        **build: Unpack[Build],
    ):
        self.gradient_checkpointing = False
        channels = [in_channels] + [out_channels] * num_layers
        self.resnets = nnx.List(
            ResnetBlock2D(*pair, resnet_groups, resnet_act_fn, **build)
            for pair in pairwise(channels)
        )
        if self.attends:
            self.attentions = nnx.List(
                Attention(out_channels, resnet_groups, EPS, **build) for _ in self.resnets
            )
        made = nnx.List([self.sampler(out_channels, **build)]) if add_sampler else None
        setattr(self, self.samplers, made)

    def __call__(self, hidden_states: Image) -> Float[Array, "b h2 w2 c2"]:
        """Return the output, larger or smaller."""
        for i, resnet in enumerate(self.resnets):
            hidden_states = call(resnet, self.gradient_checkpointing, hidden_states)
            if self.attends:
                hidden_states = call(self.attentions[i], self.gradient_checkpointing, hidden_states)
        for sampler in getattr(self, self.samplers) or ():
            hidden_states = sampler(hidden_states)
        return hidden_states


class DownEncoderBlock2D(Resnets):
    """Resnets, then a downsampler. Source: diffusers 0.42.1, `DownEncoderBlock2D`."""

    samplers, sampler = "downsamplers", Downsample2D


class AttnDownEncoderBlock2D(DownEncoderBlock2D):
    """The same with attention. Source: diffusers 0.42.1, `AttnDownEncoderBlock2D`."""

    attends = True


class UpDecoderBlock2D(Resnets):
    """Resnets, then an upsampler. Source: diffusers 0.42.1, `UpDecoderBlock2D`."""

    samplers, sampler = "upsamplers", Upsample2D


class AttnUpDecoderBlock2D(UpDecoderBlock2D):
    """The same with attention. Source: diffusers 0.42.1, `AttnUpDecoderBlock2D`."""

    attends = True


class UNetMidBlock2D(Module):
    """Two resnets, with attention between them if `add_attention`.

    Source: diffusers 0.42.1, `UNetMidBlock2D` with one layer.
    """

    def __init__(
        self,
        in_channels: int,
        resnet_act_fn: str = "swish",
        resnet_groups: int = 32,
        add_attention: bool = True,
        **build: Unpack[Build],
    ):
        self.gradient_checkpointing = False
        self.attentions = nnx.List(
            Attention(in_channels, resnet_groups, EPS, **build) for _ in range(add_attention)
        )
        self.resnets = nnx.List(
            ResnetBlock2D(in_channels, in_channels, resnet_groups, resnet_act_fn, **build)
            for _ in range(2)
        )

    def __call__(self, hidden_states: Image) -> Image:
        """Return the output, of the same size."""
        first, second = self.resnets
        x: Image = hidden_states
        for step in (first, *self.attentions, second):
            x = call(step, self.gradient_checkpointing, x)
        return x
