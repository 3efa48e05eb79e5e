"""Down- and upsampling of height, width and time.

Source: diffusers 0.42.1, `downsampling.py`, `upsampling.py`.
"""

from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Build, Conv2d
from jaxvae.layers.resize import nearest_resize
from jaxvae.layers.rounding import narrow, widen
from jaxvae.layers.scopes import Module
from jaxvae.run.steps import Video


class Downsample3D(Module):
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
        self.conv = Conv2d(in_channels, out_channels, kernel_size, stride, padding, **build)
        self.compress_time = compress_time

    def __call__(self, x: Video) -> Float[Array, "b t2 h2 w2 c2"]:
        """Return the smaller video."""
        x = _pool_and_pad(x, self.compress_time)
        batch, frames, *image = x.shape
        x = self.conv(x.reshape(batch * frames, *image))
        return x.reshape(batch, frames, *x.shape[1:])


@partial(jax.jit, static_argnames="compress_time")
def _pool_and_pad(x: Video, compress_time: bool) -> Video:
    if compress_time:
        odd = x.shape[1] % 2
        batch, _, *rest = x.shape
        pairs = x[:, odd:].reshape(batch, x.shape[1] // 2, 2, *rest)
        means = narrow(jnp.mean(widen(pairs), axis=2), x.dtype)
        x = jnp.concatenate([x[:, :odd], means], axis=1)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))


class Upsample3D(Module):
    """Double height and width, and the frames where `compress_time`.

    Source: diffusers 0.42.1, `CogVideoXUpsample3D`. With `compress_time` the first of an odd number
    of frames is doubled in space only: 3 frames give 1 + 4, 2 give 4, and 1 gives 1, so decoding
    frame by frame is another function than decoding a chunk. `double_single`, which is not in the
    source, makes 1 frame give 2: see `decode_single`.
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
        self.conv = Conv2d(in_channels, out_channels, kernel_size, stride, padding, **build)
        self.compress_time = compress_time
        self.double_single = False

    def __call__(self, inputs: Video) -> Float[Array, "b t2 h2 w2 c2"]:
        """Return the larger video."""
        batch, frames, height, width, _ = inputs.shape
        odd = frames % 2
        first_apart = self.compress_time and frames > 1 and odd == 1
        if self.compress_time and (frames > 1 or self.double_single):
            frames = 2 * frames - first_apart
        x = nearest_resize(inputs, (frames, 2 * height, 2 * width), first_apart=first_apart)
        x = self.conv(x.reshape(batch * frames, *x.shape[2:]))
        return x.reshape(batch, frames, *x.shape[1:])
