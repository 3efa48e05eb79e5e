"""Programs compiled before they are needed, several at a time.

Not in diffusers. XLA compiles a program mostly on one core, and the programs of a call are met one
after the other: compiled so, they leave the other cores idle.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax

from jaxvae.layers.convolution import Cache
from jaxvae.run.chunks import Bounds
from jaxvae.run.steps import Coder
from jaxvae.run.tiling import Windows

Program = tuple[Coder, jax.ShapeDtypeStruct, Cache | None]
"""A step, the shape of its chunk, and the shapes of the caches that it is given."""


def programs(
    coder: Coder, x: jax.ShapeDtypeStruct, windows: Windows, bounds: list[Bounds], at_once: int = 1
) -> Iterator[Program]:
    """Yield what `run_windows` runs: for each size of window a first chunk and any next one."""
    for samples, rows, columns in (group[0] for group in windows.groups()):
        batch, height, width = (end - start for start, end in (samples, rows, columns))
        cache: Cache | None = None
        for start, end in bounds[:2]:
            shape = (at_once * batch, end - start, height, width, x.shape[-1])
            chunk = jax.ShapeDtypeStruct(shape, x.dtype)
            yield coder, chunk, cache
            if cache is None:
                _, cache = jax.eval_shape(coder.step, coder.parts, chunk, None)


def compile_programs(wanted: Iterable[Program]) -> list[jax.stages.Compiled]:
    """Compile them, as many at a time as there are cores; the calls to come find them compiled."""
    with ThreadPoolExecutor(os.cpu_count(), "jaxvae-compile") as pool:
        # tracing is Python and stays in this thread; XLA compiles without Python's lock
        jobs = [pool.submit(coder.lower(x, cache).compile) for coder, x, cache in wanted]
        return [job.result() for job in jobs]
