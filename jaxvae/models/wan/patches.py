"""Pixels of a square as channels, and back.

Source: diffusers 0.42.1, `patchify` and `unpatchify`.
"""

from functools import partial

import jax

from jaxvae.run.steps import Video


@partial(jax.jit, static_argnums=1)
def patchify(x: Video, patch_size: int) -> Video:
    """Return `patch_size`**2 times the channels of a video whose sides are so much shorter.

    Raises ValueError for sides that are no multiples.
    """
    batch, frames, height, width, channels = x.shape
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"encode: expected height and width that patch_size ({patch_size}) divides, found"
            f" {height}x{width}"
        )
    x = x.reshape(batch, frames, height // patch_size, patch_size, -1, patch_size, channels)
    x = x.transpose(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(*x.shape[:4], -1)


@partial(jax.jit, static_argnums=1)
def unpatchify(x: Video, patch_size: int) -> Video:
    """Undo `patchify`."""
    batch, frames, height, width, _ = x.shape
    x = x.reshape(batch, frames, height, width, -1, patch_size, patch_size)
    x = x.transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, frames, height * patch_size, width * patch_size, -1)
