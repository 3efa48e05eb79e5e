"""The autoencoder: frame chunks through encoder and decoder, whole, in slices or in tiles.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`.
"""

from collections.abc import Iterator
from typing import Unpack

from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Build, Conv3d
from jaxvae.models.autoencoder import Autoencoder
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.models.cogvideox.encoder_decoder import Decoder3D, Encoder3D
from jaxvae.models.cogvideox.steps import decode_chunk, decode_single, encode_chunk
from jaxvae.models.cogvideox.switches import Switches
from jaxvae.models.switches import Direction
from jaxvae.run.chunks import Bounds, chunk_bounds
from jaxvae.run.steps import Coder, Step


class AutoencoderKLCogVideoX(Switches, Autoencoder):
    """The CogVideoX video autoencoder. Video is (b, t, h, w, c) in [-1, 1].

    Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`. T frames give (T - 1) // 4 + 1 latent
    frames; t latent frames give 4 t frames if t is even, 4 (t - 1) + 1 if it is odd (49 -> 13 ->
    49). Neither direction scales, shifts or clips: pipelines do that.

    Frames go through in chunks of `num_sample_frames_batch_size` or `num_latent_frames_batch_size`
    (see `run/chunks.py`). Another size is another function, not only another memory use.

    Quirk of the source, kept: `use_quant_conv` is built for 2 * out_channels, and
    `use_post_quant_conv` for out_channels, though they act on the latent. They work only where
    out_channels equals latent_channels; otherwise encode (or decode) raises.
    """

    config_class = CogVideoXVAEConfig

    def build(self, config: CogVideoXVAEConfig, **build: Unpack[Build]) -> None:
        """Make the parts, with random parameters."""
        self.num_sample_frames_batch_size = 8
        self.num_latent_frames_batch_size = 2
        self.encoder = Encoder3D(config, **build)
        self.decoder = Decoder3D(config, **build)
        out = config.out_channels
        self.quant_conv = Conv3d(2 * out, 2 * out, 1, **build) if config.use_quant_conv else None
        self.post_quant_conv = Conv3d(out, out, 1, **build) if config.use_post_quant_conv else None

    def bounds(self, direction: Direction, frames: int) -> list[Bounds]:
        """Return the chunks of so many frames of a video, or of a latent."""
        encodes = direction == "encode"
        sizes = self.num_sample_frames_batch_size, self.num_latent_frames_batch_size
        return chunk_bounds(frames, sizes[0] if encodes else sizes[1])

    def coder(self, direction: Direction, compiled: bool = True) -> Coder:
        """Return what runs on one chunk; see `make_coder`."""
        if direction == "decode":
            return self._decoder(decode_chunk, compiled)
        self._check_quant("use_quant_conv", self.quant_conv)
        parts, size = (self.encoder, self.quant_conv), self.num_sample_frames_batch_size
        return self.make_coder(encode_chunk, parts, size, compiled)

    def decode_stream(
        self, z: ArrayLike, *, single_latents: bool = False
    ) -> Iterator[Float[Array, "b t h w c"]]:
        """Yield the video of a latent (b, t, h, w, c) chunk by chunk, in constant memory.

        Joined along time the frames are what `decode` returns, bit for bit: the same programs make
        them. With tiling the caches of all tiles are held at once, those of one tile in `decode`.

        `single_latents` decodes one latent frame at a time, in half of the temporary memory, to as
        many frames. It is NOT what the reference computes: group statistics are taken over the one
        latent frame of a chunk, where the reference takes them over two or three (see
        `tests/jaxvae/test_streams.py`). Nor is it a chunk size of 1: that doubles no frame in time.
        """
        if single_latents and self.sharding is not None and self.sharding.time is not None:
            raise ValueError(
                "decode_stream: single_latents gives chunks of one frame, which time cannot split"
                " over devices; shard something else, or leave single_latents out"
            )
        if not single_latents:
            return super().decode_stream(z)
        latent = self._check_latent(z)
        bounds = chunk_bounds(latent.shape[1], 1)
        first = decode_chunk if latent.shape[1] % 2 else decode_single
        steps = [first] + [decode_single] * (len(bounds) - 1)
        coders = [self._decoder(step, size=1) for step in steps]
        return self._decode_chunks(latent, list(zip(coders, bounds, strict=True)))

    def _decoder(self, step: Step, compiled: bool = True, size: int | None = None) -> Coder:
        self._check_quant("use_post_quant_conv", self.post_quant_conv)
        parts = (self.decoder, self.post_quant_conv)
        return self.make_coder(step, parts, size or self.num_latent_frames_batch_size, compiled)

    def _check_quant(self, field: str, conv: Conv3d | None) -> None:
        out, latent = self.config.out_channels, self.config.latent_channels
        if conv is not None and out != latent:
            raise ValueError(
                f"{field}: expected out_channels ({out}) equal to latent_channels ({latent}), since"
                f" the layer is built for out_channels, as in diffusers; set {field} to false"
            )
