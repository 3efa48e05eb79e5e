"""The autoencoder: frame chunks through encoder and decoder, whole, in slices or in tiles.

Source: diffusers 0.42.1, `AutoencoderKLWan`.
"""

from typing import Unpack

from jaxvae.layers.convolution import Build, Cache
from jaxvae.layers.rounding import clamp
from jaxvae.layers.scopes import scope
from jaxvae.models.autoencoder import Autoencoder
from jaxvae.models.switches import Direction
from jaxvae.models.wan.causal_convolution import CausalConv3d
from jaxvae.models.wan.config import WanVAEConfig
from jaxvae.models.wan.encoder_decoder import Decoder3d, Encoder3d
from jaxvae.models.wan.resampling import patchify, unpatchify
from jaxvae.models.wan.switches import Switches
from jaxvae.run.chunks import Bounds, first_alone
from jaxvae.run.steps import Coder, Output, Parts, Video


def encode_chunk(parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return what the encoder makes of one chunk and the caches for the next."""
    with scope("encoder"):
        moments, cache = parts[0](x, cache)
    return moments, cache


def decode_chunk(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the frames of one chunk and the caches for the next; the first has none."""
    with scope("decoder"):
        video, cache = parts[0](z, cache, first_chunk=cache is None)
    return video, cache


class AutoencoderKLWan(Switches, Autoencoder):
    """The Wan video autoencoder, 2.1 and 2.2. Video is (b, t, h, w, c) in [-1, 1].

    Source: diffusers 0.42.1, `AutoencoderKLWan`. 4 k + 1 frames give k + 1 latent frames, which
    give 4 k + 1 frames; up to 3 frames more are left out, as in the source. Neither direction
    scales or shifts: pipelines do that. `decode` clamps to [-1, 1].

    The first frame goes through alone; then encode takes 4 frames at a time and decode one latent
    frame. All is causal in time and no norm looks at another frame, so that chunks of twice as many
    compute the same: with sharding over time, where a device needs two frames at every level.
    """

    config_class = WanVAEConfig

    def build(self, config: WanVAEConfig, **build: Unpack[Build]) -> None:
        """Make the parts, with random parameters."""
        self.encoder = Encoder3d(config, **build)
        self.quant_conv = CausalConv3d(2 * config.z_dim, 2 * config.z_dim, 1, **build)
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, 1, **build)
        self.decoder = Decoder3d(config, **build)

    def channels(self, direction: Direction) -> int:
        """Return the channels of a video, or of a latent."""
        config: WanVAEConfig = self.config
        return config.in_channels // config.patch**2 if direction == "encode" else config.z_dim

    def bounds(self, direction: Direction, frames: int) -> list[Bounds]:
        """Return the chunks of so many frames of a video, or of a latent."""
        first, *rest = first_alone(frames, 4 if direction == "encode" else 1)
        joined = self._joined
        chunks = (rest[i : i + joined] for i in range(0, len(rest), joined))
        return [first, *((some[0][0], some[-1][1]) for some in chunks)]

    def coder(self, direction: Direction, compiled: bool = True) -> Coder:
        """Return what runs on one chunk; see `make_coder`."""
        if direction == "encode":
            return self.make_coder(encode_chunk, (self.encoder,), 4 * self._joined, compiled)
        return self.make_coder(decode_chunk, (self.decoder,), self._joined, compiled)

    def prepare(self, direction: Direction, x: Video) -> Video:
        """Return a video in patches, and what the decoder takes of a latent."""
        encodes = direction == "encode"
        return patchify(x, self.config.patch) if encodes else self.post_quant_conv(x)

    def finish(self, direction: Direction, x: Video) -> Video:
        """Return the moments, and a video of pixels in [-1, 1].

        The source calls `quant_conv` here or, with tiles, before these are blended, which is the
        same up to rounding: weights of a blend add up to 1.
        """
        encodes = direction == "encode"
        output: Video = (
            self.quant_conv(x) if encodes else clamp(unpatchify(x, self.config.patch), -1.0, 1.0)
        )
        return output

    @property
    def _joined(self) -> int:
        return 1 if self.sharding is None or self.sharding.time is None else 2
