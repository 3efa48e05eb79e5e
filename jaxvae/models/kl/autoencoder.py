"""The autoencoder of images: through encoder and decoder whole, in slices or in tiles.

Source: diffusers 0.42.1, `AutoencoderKL`.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Unpack

import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Build, Cache, Conv2d
from jaxvae.layers.scopes import scope
from jaxvae.models.autoencoder import Autoencoder
from jaxvae.models.kl.attention import Attention
from jaxvae.models.kl.config import KLVAEConfig
from jaxvae.models.kl.encoder_decoder import Decoder, Encoder
from jaxvae.models.posterior import DiagonalGaussian
from jaxvae.models.switches import Direction, Sides
from jaxvae.run.chunks import Bounds, chunk_bounds
from jaxvae.run.steps import Coder, Output, Parts, Video
from jaxvae.run.streams import regroup
from jaxvae.run.tiling import Axis, plan_tiles


class AutoencoderKL(Autoencoder):
    """The autoencoder of Stable Diffusion, SDXL, SD3 and FLUX.1: images (b, h, w, c) in [-1, 1].

    Source: diffusers 0.42.1, `AutoencoderKL`. Each block but the last halves height and width:
    512x512 gives 64x64 with four. Neither direction scales, shifts or clips: pipelines do that. An
    image has no time that could be sharded.
    """

    config_class = KLVAEConfig
    axes: ClassVar[tuple[str, ...]] = ("batch", "height", "width")

    def build(self, config: KLVAEConfig, **build: Unpack[Build]) -> None:
        """Make the parts, with random parameters."""
        self.encoder = Encoder(config, **build)
        self.decoder = Decoder(config, **build)
        latent = config.latent_channels
        moments = 2 * latent
        self.quant_conv = Conv2d(moments, moments, 1, **build) if config.use_quant_conv else None
        self.post_quant_conv = (
            Conv2d(latent, latent, 1, **build) if config.use_post_quant_conv else None
        )

    def reset_tiles(self) -> None:
        """Set the sizes of tiles to those that the model starts with."""
        size = self.config.sample_size
        self.tile_sample_min_size = size[0] if isinstance(size, tuple) else size
        self.tile_latent_min_size = int(self.tile_sample_min_size / self.config.spatial_ratio)
        self.tile_overlap_factor = 0.25

    def enable_tiling(
        self, tile_sample_min_size: int | None = None, tile_overlap_factor: float | None = None
    ) -> None:
        """From now on cut images that are higher or wider than a tile into overlapping tiles.

        A tile is a square of the config's `sample_size` at first (of a height and a width the
        height, where the source fails), and overlaps the one before by a quarter. Tiles are another
        function, not only another memory use: each has group statistics and attention of its own.
        Not in diffusers: the arguments, which set what may be set by hand too.
        """
        self.use_tiling = True
        if tile_sample_min_size is not None:
            self.tile_sample_min_size = tile_sample_min_size
            self.tile_latent_min_size = int(tile_sample_min_size / self.config.spatial_ratio)
        if tile_overlap_factor is not None:
            self.tile_overlap_factor = tile_overlap_factor

    def fuse_qkv_projections(self) -> None:
        """From now on compute query, key and value of each attention as one product."""
        self._set_fused(True)

    def unfuse_qkv_projections(self) -> None:
        """Compute query, key and value as three products again."""
        self._set_fused(False)

    def encode_stream(
        self, frames: Iterable[ArrayLike], total: int
    ) -> Iterator[Float[Array, "b 1 h w moments"]]:
        """Yield the moments of a video (b, t, h, w, c) that comes in parts, frame by frame.

        Not in diffusers: each frame is an image by itself. Raises ValueError before the last frame
        if there are fewer or more than `total`.
        """
        each = regroup(map(jnp.asarray, frames), chunk_bounds(total, 1))
        return (self.encode(frame[:, 0]).parameters[:, None] for frame in each)

    def decode_stream(self, z: ArrayLike) -> Iterator[Float[Array, "b 1 h w c"]]:
        """Yield the video of latents (b, t, h, w, c) frame by frame; see `encode_stream`."""
        if isinstance(z, DiagonalGaussian):
            raise ValueError("decode_stream: expected an array, found a posterior; take its mode()")
        latents = jnp.asarray(z)
        return (self.decode(latents[:, i])[:, None] for i in range(latents.shape[1]))

    def tile_plan(self) -> tuple[tuple[int, int], Sides]:
        """Return the sizes of a tile in pixels, and the parts of it that the next one overlaps."""
        return (self.tile_sample_min_size,) * 2, (self.tile_overlap_factor,) * 2

    def set_tiles(self, sizes: tuple[int, int], overlaps: Sides) -> None:
        """Switch tiling on, with what `tile_plan` returns then: a square."""
        if sizes[0] != sizes[1]:
            raise ValueError(f"tiles of {sizes[0]}x{sizes[1]}: expected squares, as the model has")
        self.enable_tiling(sizes[0], overlaps[0])

    def plan_tiles(self, direction: Direction, size: tuple[int, int]) -> tuple[Axis, Axis] | None:
        """Return the tiles along height and width of an input of this size, None if it is one."""
        tile, factors = self.tile_plan()
        latent = (self.tile_latent_min_size,) * 2
        if direction == "encode":
            return plan_tiles(size, tile, latent, factors, self.config.spatial_ratio)
        return plan_tiles(size, latent, tile, factors)

    def bounds(self, direction: Direction, frames: int) -> list[Bounds]:
        """Return one chunk: inside, an image is a video of one frame."""
        return [(0, frames)]

    def coder(self, direction: Direction, compiled: bool = True) -> Coder:
        """Return what runs on an image; see `make_coder`."""
        if direction == "encode":
            return self.make_coder(encode_image, (self.encoder, self.quant_conv), 1, compiled)
        return self.make_coder(decode_latent, (self.decoder, self.post_quant_conv), 1, compiled)

    def prepare(self, direction: Direction, x: Float[Array, "b h w c"]) -> Video:
        """Return an image as a video of one frame, which is cut into tiles."""
        return x[:, None]

    def finish(self, direction: Direction, x: Video) -> Float[Array, "b h w c"]:
        """Return the only frame of the joined tiles."""
        return x[:, 0]

    def _set_fused(self, fused: bool) -> None:
        for _, module in nnx.iter_modules(self):
            if isinstance(module, Attention):
                module.fused_projections = fused


def encode_image(parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the moments of an image, and no caches."""
    encoder, quant_conv = parts
    with scope("encoder"):
        moments = encoder(x[:, 0])
    with scope("quant_conv"):
        moments = moments if quant_conv is None else quant_conv(moments)
    return moments[:, None], {}


def decode_latent(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the image of a latent, and no caches."""
    decoder, post_quant_conv = parts
    z = z[:, 0]
    with scope("post_quant_conv"):
        z = z if post_quant_conv is None else post_quant_conv(z)
    with scope("decoder"):
        image = decoder(z)
    return image[:, None], {}
