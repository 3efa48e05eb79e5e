"""A video through the encoder, and a latent through the decoder, with a bar for each."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxvae.io.video import Video, from_pixels

if TYPE_CHECKING:
    from rich.progress import Progress

    from jaxvae.models.autoencoder import Autoencoder


def encoded(
    model: "Autoencoder", clip: Video, bars: "Progress", *, mean: bool = False
) -> Float[Array, "1 t h w moments"]:
    """Mean and log-variance of a video's latent, one behind the other along the channels.

    All of it is held; with `mean`, that alone.
    """
    bar = bars.add_task("encoding", total=clip.frames)

    def parts() -> Iterator[Any]:
        for part in clip.parts():
            yield from_pixels(part)[None]
            bars.advance(bar, len(part))

    found = model.encode_stream(parts(), clip.frames)
    end = model.config.latent_channels if mean else None
    return jnp.concatenate([part[..., :end] for part in found], axis=1)


def decoded(
    model: "Autoencoder", latent: ArrayLike, frames: int, bars: "Progress"
) -> Iterator[Float[np.ndarray, "t h w 3"]]:
    """The frames of a latent (1, t, h, w, c), some at a time."""
    bar = bars.add_task("decoding", total=frames)
    for part in model.decode_stream(latent):
        yield np.asarray(part[0], np.float32)
        bars.advance(bar, part.shape[1])
