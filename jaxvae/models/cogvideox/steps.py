"""One chunk of frames through the encoder, or through the decoder.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX._encode` and `_decode`.
"""

import jax

from jaxvae.layers.convolution import Cache
from jaxvae.layers.scopes import scope
from jaxvae.run.steps import Output, Parts, Video


def encode_chunk(parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the moments of one chunk and the caches for the next."""
    encoder, quant_conv = parts
    with scope("encoder"):
        moments, cache = encoder(x, conv_cache=cache)
    with scope("quant_conv"):
        moments = moments if quant_conv is None else quant_conv(moments)
    return moments, cache


def decode_chunk(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the frames of one chunk and the caches for the next."""
    decoder, post_quant_conv = parts
    with scope("post_quant_conv"):
        z = z if post_quant_conv is None else post_quant_conv(z)
    with scope("decoder"):
        video, cache = decoder(z, conv_cache=cache)
    return video, cache


def decode_single(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Decode one latent frame to as many frames as each of a pair gives, not to a single one.

    The source upsamples a chunk of one frame in space only, which is right for the first of an odd
    number of latent frames and for no other. Later upsamplers meet two frames or more.
    """
    decoder, post_quant_conv = parts
    # Another module with the same parameters: the model itself stays as it is.
    decoder = jax.tree.map(lambda leaf: leaf, decoder)
    for block in decoder.up_blocks:
        for upsampler in block.upsamplers or ():
            upsampler.double_single = True
    return decode_chunk((decoder, post_quant_conv), z, cache)
