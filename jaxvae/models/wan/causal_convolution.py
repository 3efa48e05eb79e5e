"""The convolution that sees no future frame, and the frames that the next chunk needs.

Source: diffusers 0.42.1, `autoencoder_kl_wan.py`.
"""

from functools import partial
from typing import Unpack

import jax
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Build, Conv3d, as_triple
from jaxvae.layers.halo import Halo, prepend
from jaxvae.layers.products import Triple
from jaxvae.run.steps import Video

CACHE_T = 2
"""Frames that a convolution of three frames looks back."""

Past = Float[Array, "b past h w c"] | Halo | None


class CausalConv3d(Conv3d):
    """3-D convolution that sees no future frame: zeros, or the frames before, stand in front.

    Source: diffusers 0.42.1, `WanCausalConv3d`. All of the padding in time is in front.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        padding: int | Triple = 0,
        **build: Unpack[Build],
    ):
        time, height, width = as_triple(padding)
        self.time_pad = 2 * time
        space = (0, height, width)
        super().__init__(in_channels, out_channels, kernel_size, stride, space, **build)

    def __call__(self, x: Video, cache_x: Past = None) -> Float[Array, "b t2 h2 w2 dout"]:
        """Convolve; `cache_x` are the frames before `x`, as `last_frames` gives them."""
        kernel = self.kernel[...]
        if not self.time_pad:
            return self.convolve_with(kernel, x)
        alone = cache_x is None and x.shape[1] == 1 and kernel.shape[0] == self.time_pad + 1
        x = after_past(x, cache_x, self.time_pad)
        if alone:
            # an image, or a first chunk: the other taps meet nothing but the zeros in front
            x, kernel = x[:, self.time_pad :], kernel[self.time_pad :]
        return self.convolve_with(kernel, x)


@partial(jax.jit, static_argnums=2)
def after_past(x: Video, cache_x: Past, count: int) -> Video:
    """Return the `count` frames before `x`, and it."""
    return prepend(x, cache_x, count, repeat=False)[0]


@partial(jax.jit, static_argnums=2)
def last_frames(x: Video, cache_x: Past, count: int = CACHE_T) -> Float[Array, "b past h w c"]:
    """Return the last `count` frames of what came up to now: the cache for the next chunk.

    The source keeps a single frame after a first chunk that has no more. Here zeros stand before
    it, which a convolution pads with anyway: caches keep their shape from chunk to chunk.
    """
    return prepend(x, cache_x, count, repeat=False)[1]
