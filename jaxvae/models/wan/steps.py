"""One chunk of frames through the encoder, or through the decoder.

Source: diffusers 0.42.1, `AutoencoderKLWan._encode` and `_decode`.
"""

import jax

from jaxvae.layers.convolution import Cache
from jaxvae.run.steps import Output, Parts, Video


def encode_chunk(parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the moments of one chunk and the caches for the next."""
    encoder, quant_conv = parts
    with jax.named_scope("encoder"):
        moments, cache = encoder(x, cache)
    with jax.named_scope("quant_conv"):
        return quant_conv(moments), cache


def decode_chunk(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the frames of one chunk and the caches for the next; the first has none."""
    decoder, post_quant_conv = parts
    with jax.named_scope("post_quant_conv"):
        z = post_quant_conv(z)
    with jax.named_scope("decoder"):
        video, cache = decoder(z, cache, first_chunk=cache is None)
    return video, cache
