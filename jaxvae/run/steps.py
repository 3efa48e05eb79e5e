"""Chunk after chunk of frames through a compiled step of a model.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX._encode` and `_decode`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxvae.layers.convolution import Cache
from jaxvae.run.chunks import Bounds
from jaxvae.run.tiling import Window, Windows, join

Video = Float[Array, "b t h w c"]
Output = Float[Array, "b t2 h2 w2 c2"]  # another size than the input of the same call
Parts = tuple[Any, ...]
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


@partial(jax.jit, static_argnames="step", donate_argnames="cache")
def _compiled(step: Step, parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    # A module is a pytree: its parameters are arguments of the program, not constants, and every
    # static attribute of every module is part of the compilation key, so that changing one (a
    # tool's mark) can never meet a stale program. nnx.split would do the same, but takes 45 ms at
    # full size where flattening the pytree takes 6.
    return step(parts, x, cache)


@partial(nnx.jit, graph=False, static_argnames="step")
def _drawing(step: Step, parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
    return step(parts, x, cache)


@dataclass(frozen=True)
class Coder:
    """A step and the modules it runs; called with a chunk and the caches of the one before.

    With `draws` the modules draw random numbers, and what their streams count is kept.
    """

    step: Step
    parts: Parts
    compiled: bool = True
    draws: bool = False

    def __call__(self, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
        """Return what the step makes of the chunk, and the caches for the next."""
        if self.compiled:
            run: Any = _drawing if self.draws else _compiled
            output: tuple[Output, Cache] = run(self.step, self.parts, x, cache)
            return output
        return self.step(self.parts, x, cache)

    def lower(self, x: jax.ShapeDtypeStruct, cache: Cache | None) -> jax.stages.Lowered:
        """Return the program for a chunk and caches of these shapes, not compiled yet."""
        return _compiled.lower(self.step, self.parts, x, cache)

    def fill(self, x: Video) -> Video:
        """Return frames after the first chunk, with as many more as whole steps need: none here."""
        return x

    def join(self, outputs: list[Output]) -> Output:
        """Join along time what the steps return."""
        return jnp.concatenate(outputs, axis=1)

    def traced(self, x: Video) -> bool:
        """Return True inside a caller's own transformation."""
        leaves = jax.tree.leaves((x, self.parts))
        return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def run_windows(
    coder: Coder, x: Video, windows: Windows, bounds: list[Bounds], at_once: int = 1
) -> Output:
    """Run the chunks of every window and join what comes out.

    Outside of a transformation a host loop runs two compiled programs for each size of window: the
    first chunk, which has no cache, and any next chunk, which reuses the memory of the cache it
    gets. Inside a caller's own transformation the next chunks, which are all alike, are scanned,
    and slices and windows of one size are mapped over: the caller's program holds two steps for
    each size, however many chunks and windows there are.

    `at_once` windows of one size run together, stacked along the batch, and need so many times the
    memory. Statistics are those of a sample, so values change by rounding only. A stack that is not
    full repeats its last window, and what comes out of that is dropped.
    """
    if not coder.traced(x):
        stacks = {
            window: group[i : i + at_once]
            for group in windows.groups()
            for i in range(0, len(group), at_once)
            for window in group[i : i + at_once]
        }
        ready: dict[Window, Output] = {}

        def run_once(window: Window) -> Output:
            # Not before it is asked for: tiles that wait for blending take memory.
            if window not in ready:
                stack = stacks[window]
                outputs = _loop_chunks(coder, x, _filled(stack, at_once), bounds)
                ready.update(zip(stack, outputs, strict=False))
            return ready.pop(window)

        return windows.join(run_once)

    def run(x: Video, windows: Windows) -> Output:
        tiles: dict[Window, Output] = {}
        for group in windows.groups():
            outputs = _map_windows(coder, x, _filled(group, at_once), bounds, at_once)
            tiles.update(zip(group, outputs, strict=False))
        return windows.join(tiles.__getitem__)

    if len(windows.samples) == 1:
        return run(x, windows)
    one = replace(windows, samples=windows.samples[:1])
    output: Output = lax.map(lambda sample: run(sample[None], one)[0], x)
    return output


def _filled(windows: list[Window], at_once: int) -> list[Window]:
    return windows + windows[-1:] * (-len(windows) % at_once)


def _loop_chunks(coder: Coder, x: Video, stack: list[Window], bounds: list[Bounds]) -> list[Output]:
    outputs = []
    cache: Cache | None = None
    for frames in bounds:
        chunk = join([cut(x, frames, window) for window in stack], axis=0)
        output, cache = coder(chunk, cache)
        outputs.append(output)
    joined = coder.join(outputs)
    return [joined] if len(stack) == 1 else jnp.split(joined, len(stack))


def _map_windows(
    coder: Coder, x: Video, windows: list[Window], bounds: list[Bounds], at_once: int
) -> list[Output]:
    """Return the outputs of windows of one size, whose number `at_once` divides."""
    (samples, rows, columns), frames = windows[0], x.shape[1]
    batch = samples[1] - samples[0]
    size = (batch, frames, rows[1] - rows[0], columns[1] - columns[0], x.shape[-1])
    starts = np.array(
        [(samples[0], 0, rows[0], columns[0], 0) for samples, rows, columns in windows], np.int32
    )

    def run(starts: Int[Array, "n 5"]) -> Output:
        stack = join([lax.dynamic_slice(x, start, size) for start in starts], axis=0)
        return _scan_chunks(coder, stack, bounds)

    if len(windows) == at_once:
        outputs = run(jnp.asarray(starts))
    else:
        outputs = lax.map(run, jnp.asarray(starts.reshape(-1, at_once, 5)))
    outputs = outputs.reshape(len(windows), batch, *outputs.shape[-4:])
    return [outputs[i] for i in range(len(windows))]


def _scan_chunks(coder: Coder, x: Video, bounds: list[Bounds]) -> Output:
    start = bounds[0][1]
    first, cache = coder.step(coder.parts, x[:, :start], None)
    count = len(bounds) - 1
    if count == 0:
        return first
    batch, _, *image = x.shape
    x = x[:, : bounds[-1][1]]  # a model may leave out frames at the end
    filled = coder.fill(x[:, start:])
    chunks = filled.reshape(batch, count, -1, *image)

    counts: Any = None
    if coder.draws:
        graph, counts, *others = nnx.split(coder.parts, nnx.RngCount, ...)

    def body(carry: tuple[Cache, Any], chunk: Video) -> tuple[tuple[Cache, Any], Output]:
        cache, counts = carry
        parts = nnx.merge(graph, counts, *others) if coder.draws else coder.parts
        output, cache = coder.step(parts, chunk, cache)
        return (cache, nnx.state(parts, nnx.RngCount) if coder.draws else None), output

    (_, counts), outputs = lax.scan(body, (cache, counts), jnp.moveaxis(chunks, 1, 0))
    if coder.draws:
        nnx.update(coder.parts, counts)
    rest = jnp.moveaxis(outputs, 0, 1)
    rest = rest.reshape(batch, -1, *rest.shape[3:])
    return coder.join([first, rest[:, : rest.shape[1] * (x.shape[1] - start) // filled.shape[1]]])
