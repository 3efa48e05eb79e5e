"""The convolution that sees no future frame, and passes its last ones to the next chunk.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Conv3d, as_triple
from jaxvae.layers.halo import Halo, prepend
from jaxvae.layers.products import Triple
from jaxvae.layers.scopes import Module


class CausalConv3d(Module):
    """3-D convolution that sees no future frame.

    Source: diffusers 0.42.1, `CogVideoXCausalConv3d`. A first chunk repeats its first frame
    `kernel_size - 1` times in front; a later chunk starts from the `past` frames that the one
    before passed on. `pad_mode="replicate"` repeats the edge in time and space and has no cache.

    Quirks of the source, kept:
    - Height and width are swapped in the zero padding: a (3, 5, 3) kernel, which needs (2, 1),
      is padded by (1, 2) and turns 8x8 into 6x10.
    - Dilation does not enlarge the padding in time: 8 frames at dilation 2 give 6.
    A kernel of one frame needs no cache and returns None (the source returns its whole input,
    which nothing reads).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        dilation: int = 1,
        pad_mode: str = "constant",
        **build: Any,
    ):
        """Take PyTorch's arguments; an integer stride or dilation means time only."""
        kernel_size = as_triple(kernel_size)
        self.pad_mode = pad_mode
        self.time_pad = kernel_size[0] - 1
        self.height_pad = (kernel_size[1] - 1) // 2
        self.width_pad = (kernel_size[2] - 1) // 2
        self.conv = Conv3d(
            in_channels,
            out_channels,
            kernel_size,
            stride=(stride, 1, 1) if isinstance(stride, int) else stride,
            padding=0 if pad_mode == "replicate" else (0, self.width_pad, self.height_pad),
            dilation=(dilation, 1, 1),
            **build,
        )

    def __call__(
        self,
        inputs: Float[Array, "b t h w din"],
        conv_cache: Float[Array, "b past h w din"] | Halo | None = None,
    ) -> tuple[Float[Array, "b t2 h2 w2 dout"], Float[Array, "b past h w din"] | None]:
        """Return the output and the last frames, for the next chunk."""
        if self.pad_mode == "replicate":
            pads = (
                (0, 0),
                (self.time_pad, 0),
                (self.height_pad, self.height_pad),
                (self.width_pad, self.width_pad),
                (0, 0),
            )
            return self.conv(jnp.pad(inputs, pads, mode="edge")), None
        if self.time_pad == 0:
            return self.conv(inputs), None
        inputs, new_cache = _prepend(inputs, conv_cache, self.time_pad)
        return self.conv(inputs), new_cache


@partial(jax.jit, static_argnames="count")
def _prepend(
    inputs: Float[Array, "b t h w c"], past: Float[Array, "b past h w c"] | Halo | None, count: int
) -> tuple[Float[Array, "b t2 h w c"], Float[Array, "b past h w c"]]:
    return prepend(inputs, past, count, repeat=True)
