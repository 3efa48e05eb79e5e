"""The autoencoder: frame chunks through encoder and decoder, compiled once.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Key

from jaxvae.chunks import chunk_bounds
from jaxvae.coders import Decoder3D, Encoder3D
from jaxvae.config import CogVideoXVAEConfig
from jaxvae.convolution import Build, Cache, Conv3d, Precision
from jaxvae.posterior import DiagonalGaussian

Video = Float[Array, "b t h w c"]
Output = Float[Array, "b t2 h2 w2 c2"]  # another size than the input of the same call
Step = Callable[["AutoencoderKLCogVideoX", Video, Cache | None], tuple[Output, Cache]]


class AutoencoderKLCogVideoX(nnx.Module):
    """The CogVideoX video autoencoder. Video is (b, t, h, w, c) in [-1, 1].

    Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`. T frames give (T - 1) // 4 + 1 latent
    frames; t latent frames give 4 t frames if t is even, 4 (t - 1) + 1 if it is odd (49 -> 13 ->
    49). Neither direction scales, shifts or clips: pipelines do that.

    Frames go through in chunks of `num_sample_frames_batch_size` or `num_latent_frames_batch_size`
    (see `chunks.py`). Another size is another function, not only another memory use.

    Quirk of the source, kept: `use_quant_conv` is built for 2 * out_channels, and
    `use_post_quant_conv` for out_channels, though they act on the latent. They work only where
    out_channels equals latent_channels; otherwise encode (or decode) raises.
    """

    def __init__(
        self,
        config: CogVideoXVAEConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
    ):
        """Build with random parameters of `dtype`; `precision` is that of every product."""
        build: Build = {"rngs": rngs, "dtype": dtype, "precision": precision}
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.num_sample_frames_batch_size = 8
        self.num_latent_frames_batch_size = 2
        self.encoder = Encoder3D(config, **build)
        self.decoder = Decoder3D(config, **build)
        out = config.out_channels
        self.quant_conv = Conv3d(2 * out, 2 * out, 1, **build) if config.use_quant_conv else None
        self.post_quant_conv = Conv3d(out, out, 1, **build) if config.use_post_quant_conv else None

    @classmethod
    def from_pretrained(
        cls,
        path_or_repo: str | Path,
        subfolder: str | None = None,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> "AutoencoderKLCogVideoX":
        """Load a diffusers folder or Hub repository; see `weights.from_pretrained`."""
        # weights.py needs this class to build a model, hence the import here.
        from jaxvae.weights import from_pretrained

        return from_pretrained(
            path_or_repo, subfolder, dtype, precision, revision, local_files_only
        )

    def encode(self, x: ArrayLike, *, compiled: bool = True) -> DiagonalGaussian:
        """Return the posterior over the latent of a video (b, t, h, w, c).

        Without `compiled` it runs layer by layer, each of them compiled by itself: slower, and open
        to whoever wants to look at each call.
        """
        video = self._check_input("encode", x, self.config.in_channels)
        self._check_quant("use_quant_conv", self.quant_conv)
        return DiagonalGaussian(
            _run_chunks(self, _encode_chunk, video, self.num_sample_frames_batch_size, compiled)
        )

    def decode(self, z: ArrayLike, *, compiled: bool = True) -> Video:
        """Return the video of a latent (b, t, h, w, c); `compiled` as in `encode`."""
        latent = self._check_input("decode", z, self.config.latent_channels)
        self._check_quant("use_post_quant_conv", self.post_quant_conv)
        return _run_chunks(self, _decode_chunk, latent, self.num_latent_frames_batch_size, compiled)

    def __call__(
        self,
        sample: ArrayLike,
        sample_posterior: bool = False,
        key: Key[Array, ""] | None = None,
        *,
        compiled: bool = True,
    ) -> Video:
        """Encode and decode, through the mode or through a sample drawn with `key`."""
        posterior = self.encode(sample, compiled=compiled)
        latent = posterior.sample(key) if sample_posterior else posterior.mode()
        return self.decode(latent, compiled=compiled)

    def _check_input(self, name: str, x: ArrayLike, channels: int) -> Video:
        array = jnp.asarray(x)
        if array.ndim != 5 or array.shape[-1] != channels or 0 in array.shape:
            raise ValueError(
                f"{name}: expected (batch, frames, height, width, {channels}), found shape"
                f" {array.shape}; channels are last here"
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name}: expected floating point values, found {array.dtype}")
        return array.astype(self.dtype)

    def _check_quant(self, field: str, conv: Conv3d | None) -> None:
        out, latent = self.config.out_channels, self.config.latent_channels
        if conv is not None and out != latent:
            raise ValueError(
                f"{field}: expected out_channels ({out}) equal to latent_channels ({latent}), since"
                f" the layer is built for out_channels, as in diffusers; set {field} to false"
            )


def _encode_chunk(
    vae: AutoencoderKLCogVideoX, x: Video, cache: Cache | None
) -> tuple[Output, Cache]:
    moments, cache = vae.encoder(x, conv_cache=cache)
    return (moments if vae.quant_conv is None else vae.quant_conv(moments)), cache


def _decode_chunk(
    vae: AutoencoderKLCogVideoX, z: Video, cache: Cache | None
) -> tuple[Output, Cache]:
    z = z if vae.post_quant_conv is None else vae.post_quant_conv(z)
    return vae.decoder(z, conv_cache=cache)


@partial(jax.jit, static_argnames="step", donate_argnames="cache")
def _compiled_step(
    step: Step, vae: AutoencoderKLCogVideoX, x: Video, cache: Cache | None
) -> tuple[Output, Cache]:
    # A module is a pytree: its parameters are arguments of the program, not constants, and every
    # static attribute of every module is part of the compilation key, so that changing one (a chunk
    # size, a tool's mark) can never meet a stale program. nnx.split would do the same, but takes
    # 45 ms at full size where flattening the pytree takes 6.
    return step(vae, x, cache)


def _run_chunks(
    vae: AutoencoderKLCogVideoX, step: Step, x: Video, size: int, compiled: bool
) -> Output:
    """Send the chunks of `x` through `step` in order and join the results along time.

    Outside of a transformation a host loop runs two compiled programs: the first chunk, which has
    no cache, and any next chunk, which reuses the memory of the cache it gets. Inside a caller's
    own transformation the next chunks, which are all alike, are scanned.
    """
    bounds = chunk_bounds(x.shape[1], size)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((x, vae))):
        return _scan_chunks(vae, step, x, bounds)
    run = partial(_compiled_step, step) if compiled else step
    outputs = []
    cache: Cache | None = None
    for start, end in bounds:
        # A dynamic slice takes its start as an argument, so that chunks share one program.
        frames = lax.dynamic_slice_in_dim(x, start, end - start, axis=1)
        output, cache = run(vae, frames, cache)
        outputs.append(output)
    return jnp.concatenate(outputs, axis=1)


def _scan_chunks(
    vae: AutoencoderKLCogVideoX, step: Step, x: Video, bounds: list[tuple[int, int]]
) -> Output:
    start = bounds[0][1]
    first, cache = step(vae, x[:, :start], None)
    count = len(bounds) - 1
    if count == 0:
        return first
    batch, _, *image = x.shape
    chunks = x[:, start:].reshape(batch, count, -1, *image)

    def body(cache: Cache, chunk: Video) -> tuple[Cache, Output]:
        output, cache = step(vae, chunk, cache)
        return cache, output

    _, outputs = lax.scan(body, cache, jnp.moveaxis(chunks, 1, 0))
    rest = jnp.moveaxis(outputs, 0, 1)
    return jnp.concatenate([first, rest.reshape(batch, -1, *rest.shape[3:])], axis=1)
