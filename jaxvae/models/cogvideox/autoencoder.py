"""The autoencoder: frame chunks through encoder and decoder, whole, in slices or in tiles.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Key

from jaxvae.devices.compile_ahead import Program, compile_programs, programs
from jaxvae.devices.compile_cache import use_default_cache
from jaxvae.devices.sharding import shard
from jaxvae.io.pretrained import Pretrained
from jaxvae.layers.convolution import Build, Conv3d, Precision
from jaxvae.layers.dtypes import check_dtypes
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.models.cogvideox.encoder_decoder import Decoder3D, Encoder3D
from jaxvae.models.cogvideox.steps import decode_chunk, decode_single, encode_chunk
from jaxvae.models.cogvideox.switches import Switches
from jaxvae.models.posterior import DiagonalGaussian
from jaxvae.run.chunks import Bounds, chunk_bounds
from jaxvae.run.gradient_checkpointing import GradientCheckpointing
from jaxvae.run.steps import Coder, Plan, Step, Video, run_windows
from jaxvae.run.streams import regroup, run_stream


class AutoencoderKLCogVideoX(Switches, Pretrained, GradientCheckpointing):
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

    def __init__(
        self,
        config: CogVideoXVAEConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
        param_dtype: DTypeLike | None = None,
    ):
        """Build with random parameters.

        `dtype` is what encode and decode compute in and return, `param_dtype` what the parameters
        are kept in (None: `dtype`); see `layers/dtypes.py`. `precision` is that of every product.
        """
        super().__init__(config)
        self.dtype, self.param_dtype = check_dtypes(dtype, param_dtype)
        build: Build = {"rngs": rngs, "dtype": self.param_dtype, "precision": precision}
        self.num_sample_frames_batch_size = 8
        self.num_latent_frames_batch_size = 2
        self.encoder = Encoder3D(config, **build)
        self.decoder = Decoder3D(config, **build)
        out = config.out_channels
        self.quant_conv = Conv3d(2 * out, 2 * out, 1, **build) if config.use_quant_conv else None
        self.post_quant_conv = Conv3d(out, out, 1, **build) if config.use_post_quant_conv else None

    def encode(self, x: ArrayLike, *, compiled: bool = True) -> DiagonalGaussian:
        """Return the posterior over the latent of a video (b, t, h, w, c).

        The latent is (b, (t - 1) // 4 + 1, h / 8, w / 8, latent_channels) with the default config.
        Without `compiled` it runs layer by layer, each of them compiled by itself: slower, and open
        to whoever wants to look at each call. Raises ValueError for another rank, number of
        channels or kind of numbers, and for tiles that leave too little (`tiling.plan_axis`).
        """
        video = self._check_input("encode", x, self.config.in_channels)
        coder, windows, bounds = self._plan(encode_chunk, video.shape, compiled)
        return DiagonalGaussian(run_windows(coder, video, windows, bounds, self._at_once))

    def decode(self, z: ArrayLike, *, compiled: bool = True) -> Video:
        """Return the video of a latent (b, t, h, w, c); `compiled` as in `encode`."""
        latent = self._check_input("decode", z, self.config.latent_channels)
        coder, windows, bounds = self._plan(decode_chunk, latent.shape, compiled)
        return run_windows(coder, latent, windows, bounds, self._at_once)

    def encode_stream(
        self, frames: Iterable[ArrayLike], total: int
    ) -> Iterator[Float[Array, "b t h w moments"]]:
        """Yield the moments of a video that comes in parts, chunk by chunk, in constant memory.

        `frames` yields arrays (b, t, h, w, c) of any t, alike otherwise, with `total` frames in
        all: the first chunk takes the remainder, so its length depends on them. The moments, joined
        along time, are the `parameters` of what `encode` returns, bit for bit: the same programs
        make them. With tiling the caches of all tiles are held at once, those of one tile in
        `encode`.

        Raises ValueError before the last chunk if there are fewer or more frames than `total`.
        """
        self._check_stream("encode_stream")
        bounds = self._bounds(total, self.num_sample_frames_batch_size)
        coder = self._coder(encode_chunk, self.num_sample_frames_batch_size)
        channels = self.config.in_channels
        videos = (self._check_input("encode_stream", x, channels) for x in frames)
        chunks = regroup(videos, bounds)
        return run_stream(((coder, chunk) for chunk in chunks), self.sample_windows)

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
        self._check_stream("decode_stream")
        if single_latents and self.sharding is not None and self.sharding.time is not None:
            raise ValueError(
                "decode_stream: single_latents gives chunks of one frame, which time cannot split"
                " over devices; shard something else, or leave single_latents out"
            )
        latent = self._check_input("decode_stream", z, self.config.latent_channels)
        size = 1 if single_latents else self.num_latent_frames_batch_size
        bounds = self._bounds(latent.shape[1], size)
        step = decode_single if single_latents else decode_chunk
        first = decode_chunk if latent.shape[1] % 2 else step
        coders = [self._coder(step if start else first, size) for start, _ in bounds]
        chunks = (
            lax.dynamic_slice_in_dim(latent, start, end - start, axis=1) for start, end in bounds
        )
        windows = self.latent_windows(latent.shape)
        return run_stream(zip(coders, chunks, strict=True), lambda _: windows)

    def __call__(
        self,
        sample: ArrayLike,
        sample_posterior: bool = False,
        key: Key[Array, "*b"] | None = None,
        noise: Float[Array, "b t2 h2 w2 c2"] | None = None,
        *,
        compiled: bool = True,
    ) -> Video:
        """Encode and decode, through the mode or, with `sample_posterior`, through a sample.

        The sample is drawn with `key`, or made of `noise` (see `DiagonalGaussian.sample`). Without
        `sample_posterior` neither is used, like the source's `generator`.
        """
        posterior = self.encode(sample, compiled=compiled)
        latent = posterior.sample(key, noise) if sample_posterior else posterior.mode()
        return self.decode(latent, compiled=compiled)

    def compile_ahead(
        self, video: tuple[int, ...] | None = None, latent: tuple[int, ...] | None = None
    ) -> None:
        """Compile the steps of `encode` of a video, and of `decode` of a latent, of these shapes.

        Shapes are (b, t, h, w, c). Several programs are compiled at a time, where calls compile
        them one after the other; a call that comes later finds them. Switch tiling and slicing
        before, since they decide on the programs.
        """
        compile_programs(self.step_programs(video, latent))

    def step_programs(
        self, video: tuple[int, ...] | None = None, latent: tuple[int, ...] | None = None
    ) -> Iterator[Program]:
        """Return what `compile_ahead` would compile for these shapes, not compiled yet.

        Raises ValueError for no shape, and for one that encode or decode would refuse.
        """
        if video is None and latent is None:
            raise ValueError("expected the shape of a video or a latent, found none")
        wanted: list[Iterator[Program]] = []
        for name, shape, channels, step in (
            ("video", video, self.config.in_channels, encode_chunk),
            ("latent", latent, self.config.latent_channels, decode_chunk),
        ):
            if shape is None:
                continue
            if not _is_shape(shape):
                raise ValueError(
                    f"{name}: expected a shape, five integers, found a {type(shape).__name__} that"
                    " is none; an array's is its .shape"
                )
            self._check_shape(name, shape, channels)
            coder, windows, bounds = self._plan(step, shape)
            frames = jax.ShapeDtypeStruct(shape, self.dtype)
            wanted.append(programs(coder, frames, windows, bounds, self._at_once))
        return itertools.chain(*wanted)

    @property
    def _at_once(self) -> int:
        return 1 if self.sharding is None else self.sharding.devices("tiles")

    def _bounds(self, frames: int, size: int) -> list[Bounds]:
        bounds = chunk_bounds(frames, size)
        return bounds if self.sharding is None else self.sharding.rounds(bounds)

    def _plan(self, step: Step, shape: tuple[int, ...], compiled: bool = True) -> Plan:
        if step is encode_chunk:
            size, windows = self.num_sample_frames_batch_size, self.sample_windows(shape)
        else:
            size, windows = self.num_latent_frames_batch_size, self.latent_windows(shape)
        return self._coder(step, size, compiled), windows, self._bounds(shape[1], size)

    def _coder(self, step: Step, size: int, compiled: bool = True) -> Coder:
        use_default_cache()
        out, latent = self.config.out_channels, self.config.latent_channels
        encodes = step is encode_chunk
        field = "use_quant_conv" if encodes else "use_post_quant_conv"
        quant_conv = self.quant_conv if encodes else self.post_quant_conv
        if quant_conv is not None and out != latent:
            raise ValueError(
                f"{field}: expected out_channels ({out}) equal to latent_channels ({latent}), since"
                f" the layer is built for out_channels, as in diffusers; set {field} to false"
            )
        coder = Coder(step, (self.encoder if encodes else self.decoder, quant_conv), compiled)
        return coder if self.sharding is None else shard(coder, self.sharding, size)

    def _check_input(self, name: str, x: ArrayLike, channels: int) -> Video:
        if isinstance(x, DiagonalGaussian):
            raise ValueError(f"{name}: expected an array, found a posterior; take its mode()")
        array = jnp.asarray(x)
        self._check_shape(name, array.shape, channels)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name}: expected floating point values, found {array.dtype}")
        return array.astype(self.dtype)

    def _check_stream(self, name: str) -> None:
        if self._at_once > 1:
            raise ValueError(
                f"{name}: a stream runs its tiles one after the other, and they are sharded; call"
                " disable_sharding(), or encode and decode"
            )

    def _check_shape(self, name: str, shape: tuple[int, ...], channels: int) -> None:
        if len(shape) != 5 or shape[-1] != channels or 0 in shape:
            raise ValueError(
                f"{name}: expected (batch, frames, height, width, {channels}), found shape"
                f" {shape}; channels are last here"
            )


def _is_shape(shape: object) -> bool:
    return isinstance(shape, Sequence) and all(isinstance(n, Integral) for n in shape)
