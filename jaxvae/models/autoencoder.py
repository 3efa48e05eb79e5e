"""Chunks, slices, tiles and streams around a model's own steps, alike for all autoencoders.

Source: diffusers 0.42.1, `encode`, `decode` and `forward` of its autoencoders.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Unpack

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
from jaxvae.layers.activations import Dropout
from jaxvae.layers.convolution import Build, Precision
from jaxvae.layers.dtypes import check_dtypes
from jaxvae.models.posterior import DiagonalGaussian
from jaxvae.models.switches import Direction, Switches
from jaxvae.run.chunks import Bounds
from jaxvae.run.gradient_checkpointing import GradientCheckpointing
from jaxvae.run.steps import Coder, Output, Parts, Step, Video, run_windows
from jaxvae.run.streams import regroup, run_stream


class Autoencoder(Switches, Pretrained, GradientCheckpointing):
    """A model of an encoder and a decoder, channels last, that runs as its class says.

    A class has `encoder` and `decoder`, and says how frames are cut (`bounds`) and what runs on a
    chunk of them (`coder`).

    Source: diffusers 0.42.1, `AutoencoderMixin`.
    """

    axes: ClassVar[tuple[str, ...]] = ("batch", "frames", "height", "width")
    """The axes of what the model takes and returns, before the channels."""

    def __init__(
        self,
        config: Any,
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
        self.build(config, **build)

    def build(self, config: Any, **build: Unpack[Build]) -> None:
        """Make the parts, with random parameters."""
        raise NotImplementedError

    def channels(self, direction: Direction) -> int:
        """Return the channels of a video, or of a latent."""
        encodes = direction == "encode"
        channels: int = self.config.in_channels if encodes else self.config.latent_channels
        return channels

    def bounds(self, direction: Direction, frames: int) -> list[Bounds]:
        """Return the chunks of so many frames of a video, or of a latent; some may be left out."""
        raise NotImplementedError

    def coder(self, direction: Direction, compiled: bool = True) -> Coder:
        """Return what runs on one chunk; see `make_coder`."""
        raise NotImplementedError

    def prepare(self, direction: Direction, x: Video) -> Video:
        """Return (b, t, h, w, c), which is cut into chunks and tiles, of what the model takes."""
        return x

    def finish(self, direction: Direction, x: Video) -> Video:
        """Return what the model returns, of the joined chunks and tiles."""
        return x

    def encode(self, x: ArrayLike, *, compiled: bool = True) -> DiagonalGaussian:
        """Return the posterior over the latent of a video (b, t, h, w, c).

        Without `compiled` it runs layer by layer, each of them compiled by itself: slower, and open
        to whoever wants to look at each call. Raises ValueError for another rank, number of
        channels or kind of numbers, and for tiles that leave too little (`tiling.plan_axis`).
        """
        return DiagonalGaussian(self._run("encode", x, compiled))

    def decode(self, z: ArrayLike, *, compiled: bool = True) -> Video:
        """Return the video of a latent (b, t, h, w, c); `compiled` as in `encode`."""
        return self._run("decode", z, compiled)

    def encode_stream(
        self, frames: Iterable[ArrayLike], total: int
    ) -> Iterator[Float[Array, "b t h w moments"]]:
        """Yield the moments of a video that comes in parts, chunk by chunk, in constant memory.

        `frames` yields arrays (b, t, h, w, c) of any t, alike otherwise, with `total` frames in
        all: they decide how the chunks are cut. The moments, joined along time, are the
        `parameters` of what `encode` returns, bit for bit: the same programs make them. With tiling
        the caches of all tiles are held at once, those of one tile in `encode`.

        Raises ValueError before the last chunk if there are fewer or more frames than `total`.
        """
        self._check_stream("encode_stream")
        coder = self.coder("encode")
        videos = (
            self.prepare("encode", self._check_input("encode_stream", "encode", x)) for x in frames
        )
        chunks = regroup(videos, self._rounds("encode", total), total)
        outputs = run_stream(((coder, chunk) for chunk in chunks), self.sample_windows)
        return (self.finish("encode", output) for output in outputs)

    def decode_stream(self, z: ArrayLike) -> Iterator[Float[Array, "b t h w c"]]:
        """Yield the video of a latent (b, t, h, w, c) chunk by chunk, in constant memory.

        Joined along time the frames are what `decode` returns, bit for bit: the same programs make
        them. With tiling the caches of all tiles are held at once, those of one tile in `decode`.
        """
        latent = self._check_latent(z)
        bounds = self._rounds("decode", latent.shape[1])
        return self._decode_chunks(latent, [(self.coder("decode"), chunk) for chunk in bounds])

    def __call__(
        self,
        sample: ArrayLike,
        sample_posterior: bool = False,
        key: Key[Array, "*b"] | None = None,
        noise: Float[Array, "b *positions c"] | None = None,
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

        Shapes are those of the arrays that the calls take. Several programs are compiled at a time,
        where calls compile them one after the other; a call that comes later finds them. Switch
        tiling and slicing before, since they decide on the programs.
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
        for name, shape in (("video", video), ("latent", latent)):
            if shape is not None and not _is_shape(shape):
                raise ValueError(
                    f"{name}: expected a shape, {len(self.axes) + 1} integers, found a"
                    f" {type(shape).__name__} that is none; an array's is its .shape"
                )
        wanted: list[Iterator[Program]] = []
        if video is not None:
            wanted.append(self._programs("encode", "video", video))
        if latent is not None:
            wanted.append(self._programs("decode", "latent", latent))
        return itertools.chain(*wanted)

    def make_coder(self, step: Step, parts: Parts, size: int, compiled: bool) -> Coder:
        """Return the coder of a step, over devices if asked for; `size` frames are a next chunk."""
        use_default_cache()
        drawing = getattr(self.config, "dropout", 0) and any(
            isinstance(module, Dropout) and not module.deterministic
            for part in parts
            for _, module in nnx.iter_modules(part)
        )
        coder = Coder(step, parts, compiled, bool(drawing))
        return coder if self.sharding is None else shard(coder, self.sharding, size)

    @property
    def _at_once(self) -> int:
        return 1 if self.sharding is None else self.sharding.devices("tiles")

    def _rounds(self, direction: Direction, frames: int) -> list[Bounds]:
        bounds = self.bounds(direction, frames)
        return bounds if self.sharding is None else self.sharding.rounds(bounds)

    def _run(self, direction: Direction, x: ArrayLike, compiled: bool) -> Output:
        video = self.prepare(direction, self._check_input(direction, direction, x))
        bounds = self._rounds(direction, video.shape[1])
        windows = self._windows(direction, video.shape)
        coder = self.coder(direction, compiled)
        return self.finish(direction, run_windows(coder, video, windows, bounds, self._at_once))

    def _programs(
        self, direction: Direction, name: str, shape: tuple[int, ...]
    ) -> Iterator[Program]:
        self._check_shape(name, direction, shape)
        given = jax.ShapeDtypeStruct(shape, self.dtype)
        video = jax.eval_shape(partial(self.prepare, direction), given)
        bounds = self._rounds(direction, video.shape[1])
        windows = self._windows(direction, video.shape)
        return programs(self.coder(direction), video, windows, bounds, self._at_once)

    def _check_latent(self, z: ArrayLike) -> Video:
        self._check_stream("decode_stream")
        return self.prepare("decode", self._check_input("decode_stream", "decode", z))

    def _decode_chunks(self, latent: Video, chunks: list[tuple[Coder, Bounds]]) -> Iterator[Output]:
        parts = (
            (coder, lax.dynamic_slice_in_dim(latent, start, end - start, axis=1))
            for coder, (start, end) in chunks
        )
        windows = self.latent_windows(latent.shape)
        return (self.finish("decode", output) for output in run_stream(parts, lambda _: windows))

    def _check_input(self, name: str, direction: Direction, x: ArrayLike) -> Video:
        if isinstance(x, DiagonalGaussian):
            raise ValueError(f"{name}: expected an array, found a posterior; take its mode()")
        array = jnp.asarray(x)
        self._check_shape(name, direction, array.shape)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name}: expected floating point values, found {array.dtype}")
        return array.astype(self.dtype)

    def _check_shape(self, name: str, direction: Direction, shape: tuple[int, ...]) -> None:
        channels = self.channels(direction)
        if len(shape) != len(self.axes) + 1 or shape[-1] != channels or 0 in shape:
            raise ValueError(
                f"{name}: expected ({', '.join(self.axes)}, {channels}), found shape"
                f" {shape}; channels are last here"
            )

    def _check_stream(self, name: str) -> None:
        if self._at_once > 1:
            raise ValueError(
                f"{name}: a stream runs its tiles one after the other, and they are sharded; call"
                " disable_sharding(), or encode and decode"
            )


def _is_shape(shape: object) -> bool:
    return isinstance(shape, Sequence) and all(isinstance(n, Integral) for n in shape)
