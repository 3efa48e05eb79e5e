"""Nearest-neighbour resizing as PyTorch rounds it.

Source: torch 2.13, `interpolate`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def nearest_index(old: int, new: int) -> np.ndarray:
    """Return which of `old` positions each of `new` positions reads, as PyTorch rounds it.

    That is floor(i * old / new), with old / new rounded to float32 first unless new is 2 * old. So
    even at an integer factor an index may be one lower than i // factor: 60 -> 3660 has some.
    """
    if new == 2 * old:
        return np.repeat(np.arange(old), 2)
    ratio = np.float32(old) / np.float32(new)
    index: np.ndarray = np.floor(np.arange(new, dtype=np.float32) * ratio).astype(np.int64)
    clipped: np.ndarray = np.minimum(index, old - 1)
    return clipped


@partial(jax.jit, static_argnames=("size", "first_apart"))
def nearest_resize(
    x: Float[Array, "b t h w c"], size: tuple[int, int, int], first_apart: bool = False
) -> Float[Array, "b t2 h2 w2 c"]:
    """Resize (t, h, w) to `size` as `torch.nn.functional.interpolate(x, size=size)` does.

    Output i reads input floor(i * in / out): 3 -> 7 reads 0 0 0 1 1 2 2. `jax.image.resize` uses
    pixel centres and reads 0 0 1 1 1 2 2; the two agree for integer upscaling only. With
    `first_apart` the first frame stays one frame, and the rest is resized to the rest of `size`.
    """
    if first_apart:
        first = nearest_resize(x[:, :1], (1, *size[1:]))
        rest = nearest_resize(x[:, 1:], (size[0] - 1, *size[1:]))
        return jnp.concatenate([first, rest], axis=1)
    if 0 in x.shape:
        raise ValueError(f"nearest resize: an input of shape {x.shape} has nothing to repeat")
    for axis, new in enumerate(size, start=1):
        old = x.shape[axis]
        index = nearest_index(old, new)
        if new % old == 0 and np.array_equal(index, np.arange(new) // (new // old)):
            x = jnp.repeat(x, new // old, axis=axis)
        else:
            x = jnp.take(x, index, axis=axis, mode="clip")
    return x
