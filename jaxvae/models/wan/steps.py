"""One chunk of frames through the encoder, or through the decoder.

Source: diffusers 0.42.1, the loops of `AutoencoderKLWan._encode` and `_decode`.
"""

import jax

from jaxvae.layers.convolution import Cache
from jaxvae.run.steps import Output, Parts, Video


def encode_chunk(parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return what the encoder makes of one chunk and the caches for the next."""
    (encoder,) = parts
    with jax.named_scope("encoder"):
        moments, cache = encoder(x, cache)
    return moments, cache


def decode_chunk(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the frames of one chunk and the caches for the next; the first has none."""
    (decoder,) = parts
    with jax.named_scope("decoder"):
        video, cache = decoder(z, cache, first_chunk=cache is None)
    return video, cache
