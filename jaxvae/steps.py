"""One chunk of frames through encoder or decoder, and chunk after chunk: the compiled programs.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX._encode` and `_decode`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxvae.chunks import Bounds
from jaxvae.coders import Decoder3D, Encoder3D
from jaxvae.convolution import Cache, Conv3d
from jaxvae.tiling import Window, Windows

Video = Float[Array, "b t h w c"]
Output = Float[Array, "b t2 h2 w2 c2"]  # another size than the input of the same call
Parts = tuple[Encoder3D | Decoder3D, Conv3d | None]
"""The modules that a step runs, and no other: what else the model holds is no part of a program."""

Step = Callable[[Parts, Video, Cache | None], tuple[Output, Cache]]


def cut(x: Video, frames: Bounds, window: Window) -> Video:
    """Return some frames of a window of `x`."""
    bounds = (window.samples, frames, window.rows, window.columns)
    # A dynamic slice takes its start as an argument, so that equal windows share one program.
    return lax.dynamic_slice(
        x,
        (*(start for start, _ in bounds), 0),
        (*(end - start for start, end in bounds), x.shape[-1]),
    )


def encode_chunk(parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the moments of one chunk and the caches for the next."""
    encoder, quant_conv = parts
    with jax.named_scope("encoder"):
        moments, cache = encoder(x, conv_cache=cache)
    with jax.named_scope("quant_conv"):
        return (moments if quant_conv is None else quant_conv(moments)), cache


def decode_chunk(parts: Parts, z: Video, cache: Cache | None) -> tuple[Output, Cache]:
    """Return the frames of one chunk and the caches for the next."""
    decoder, post_quant_conv = parts
    with jax.named_scope("post_quant_conv"):
        z = z if post_quant_conv is None else post_quant_conv(z)
    with jax.named_scope("decoder"):
        return decoder(z, conv_cache=cache)


@partial(jax.jit, static_argnames="step", donate_argnames="cache")
def _compiled(step: Step, parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    # A module is a pytree: its parameters are arguments of the program, not constants, and every
    # static attribute of every module is part of the compilation key, so that changing one (a
    # tool's mark) can never meet a stale program. nnx.split would do the same, but takes 45 ms at
    # full size where flattening the pytree takes 6.
    return step(parts, x, cache)


@dataclass(frozen=True)
class Coder:
    """A step and the modules it runs; called with a chunk and the caches of the one before."""

    step: Step
    parts: Parts
    compiled: bool = True

    def __call__(self, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
        """Return what the step makes of the chunk, and the caches for the next."""
        if self.compiled:
            output: tuple[Output, Cache] = _compiled(self.step, self.parts, x, cache)
            return output
        return self.step(self.parts, x, cache)

    def lower(self, x: jax.ShapeDtypeStruct, cache: Cache | None) -> jax.stages.Lowered:
        """Return the program for a chunk and caches of these shapes, not compiled yet."""
        return _compiled.lower(self.step, self.parts, x, cache)

    def traced(self, x: Video) -> bool:
        """Whether this runs inside a caller's own transformation."""
        leaves = jax.tree.leaves((x, self.parts))
        return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def run_windows(coder: Coder, x: Video, windows: Windows, bounds: list[Bounds]) -> Output:
    """Run the chunks of every window and join what comes out.

    Outside of a transformation a host loop runs two compiled programs for each size of window: the
    first chunk, which has no cache, and any next chunk, which reuses the memory of the cache it
    gets. Inside a caller's own transformation the next chunks, which are all alike, are scanned,
    slices are mapped over, and tiles are written out one after the other.
    """
    if not coder.traced(x):
        return windows.join(lambda window: _loop_chunks(coder, x, window, bounds))

    def run(x: Video, windows: Windows) -> Output:
        return windows.join(
            lambda window: _scan_chunks(coder, cut(x, (0, x.shape[1]), window), bounds)
        )

    if len(windows.samples) == 1:
        return run(x, windows)
    one = replace(windows, samples=windows.samples[:1])
    output: Output = lax.map(lambda sample: run(sample[None], one)[0], x)
    return output


def _loop_chunks(coder: Coder, x: Video, window: Window, bounds: list[Bounds]) -> Output:
    outputs = []
    cache: Cache | None = None
    for frames in bounds:
        output, cache = coder(cut(x, frames, window), cache)
        outputs.append(output)
    return jnp.concatenate(outputs, axis=1)


def _scan_chunks(coder: Coder, x: Video, bounds: list[Bounds]) -> Output:
    start = bounds[0][1]
    first, cache = coder.step(coder.parts, x[:, :start], None)
    count = len(bounds) - 1
    if count == 0:
        return first
    batch, _, *image = x.shape
    chunks = x[:, start:].reshape(batch, count, -1, *image)

    def body(cache: Cache, chunk: Video) -> tuple[Cache, Output]:
        output, cache = coder.step(coder.parts, chunk, cache)
        return cache, output

    _, outputs = lax.scan(body, cache, jnp.moveaxis(chunks, 1, 0))
    rest = jnp.moveaxis(outputs, 0, 1)
    return jnp.concatenate([first, rest.reshape(batch, -1, *rest.shape[3:])], axis=1)
