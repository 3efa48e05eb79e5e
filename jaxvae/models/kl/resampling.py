"""Down- and upsampling of height and width.

Source: diffusers 0.42.1, `downsampling.py`, `upsampling.py`.
"""

from typing import Unpack

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Build, Conv2d
from jaxvae.layers.resize import nearest_resize
from jaxvae.layers.scopes import Module
from jaxvae.models.kl.attention import Image


class Downsample2D(Module):
    """Halve height and width: 17 -> 8 -> 4 -> 2.

    Source: diffusers 0.42.1, `Downsample2D` with `use_conv` and no padding of its own: one row of
    zeros at the bottom and one column at the right, then a convolution with stride 2.
    """

    def __init__(self, channels: int, **build: Unpack[Build]):
        self.conv = Conv2d(channels, channels, 3, stride=2, **build)

    def __call__(self, hidden_states: Image) -> Float[Array, "b h2 w2 c"]:
        """Return the smaller image."""
        return self.conv(jnp.pad(hidden_states, ((0, 0), (0, 1), (0, 1), (0, 0))))


class Upsample2D(Module):
    """Double height and width: every pixel four times, then a convolution.

    Source: diffusers 0.42.1, `Upsample2D` with `use_conv`.
    """

    def __init__(self, channels: int, **build: Unpack[Build]):
        self.conv = Conv2d(channels, channels, 3, padding=1, **build)

    def __call__(self, hidden_states: Image) -> Float[Array, "b h2 w2 c"]:
        """Return the larger image."""
        _, height, width, _ = hidden_states.shape
        larger = nearest_resize(hidden_states[:, None], (1, 2 * height, 2 * width))
        return self.conv(larger[:, 0])
