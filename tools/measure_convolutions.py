"""Time that each formulation of a convolution takes on this CPU, and its distance from float64.

    python -m tools.measure_convolutions

Shapes are those of the full-size model for 9 frames of 64x64, and one of 2 frames of 240x360
with --large. Each formulation is run four times in one program, as the model runs it among others;
PyTorch is oneDNN, called four times. Arrays are channels last, as the port's, but where it says so.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from jaxvae.layers import winograd
from jaxvae.layers.products import multiply, sum_over_time
from tools.tables import publish

ONE, PADDING, HIGHEST = (1, 1, 1), (0, 1, 1), lax.Precision.HIGHEST
TIMES = 4
HEAD = ("frames, height, width, channels", "", "ms", "GFLOP/s", "rms from float64")
HEADS = (HEAD,)

SHAPES = ((9, 64, 64, 128), (9, 32, 32, 256), (5, 16, 16, 256), (3, 8, 8, 512))
"""Frames, height, width, and channels in and out."""

LARGE = (2, 240, 360, 128)

LAST, FIRST = ("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "DHWIO", "NCDHW")

CHANNELS_FIRST = "3-D, channels first"

FORMULATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "3-D": lambda x, k: multiply(x, k, (ONE, PADDING, ONE, LAST, HIGHEST)),
    CHANNELS_FIRST: lambda x, k: multiply(x, k, (ONE, PADDING, ONE, FIRST, HIGHEST)),
    "sum of 2-D": lambda x, k: sum_over_time(x, k, (ONE, PADDING, ONE, HIGHEST)),
    "Winograd": lambda x, k: winograd.convolve(x, k, PADDING),
}


def median(run: Callable[[], Any], rounds: int) -> float:
    """Seconds of `run`, after one that is not counted."""
    run()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _finished(run: Callable[[], Any]) -> Any:
    return jax.block_until_ready(run())


def rows(shape: tuple[int, int, int, int], rounds: int) -> list[tuple[str, float, float]]:
    """Name, seconds of one convolution and its rms distance from float64."""
    frames, height, width, channels = shape
    noise = np.random.default_rng(0)
    x = noise.standard_normal((1, frames + 2, height, width, channels)).astype(np.float32)
    kernel = noise.standard_normal((3, 3, 3, channels, channels)) / np.sqrt(27 * channels)
    kernel = kernel.astype(np.float32)
    theirs = torch.from_numpy(x.transpose(0, 4, 1, 2, 3)).contiguous()
    weight = torch.from_numpy(kernel.transpose(4, 3, 0, 1, 2)).contiguous()

    def convolve(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv3d(x, weight, padding=PADDING)

    with torch.inference_mode():
        exact = convolve(theirs.double(), weight.double())
        found = [
            (
                "PyTorch",
                median(lambda: [convolve(theirs, weight) for _ in range(TIMES)], rounds) / TIMES,
                float((convolve(theirs, weight) - exact).square().mean().sqrt()),
            )
        ]
    reference = exact.permute(0, 2, 3, 4, 1).numpy()
    for name, formulation in FORMULATIONS.items():
        axes = (0, 4, 1, 2, 3) if name == CHANNELS_FIRST else (0, 1, 2, 3, 4)
        given = np.ascontiguousarray(x.transpose(axes))
        pads = tuple((2 * (axis == 1), 0) for axis in axes)

        def chain(x: Any, kernel: Any, formulation: Any = formulation, pads: Any = pads) -> Any:
            for _ in range(TIMES):
                x = jnp.pad(formulation(x, kernel), pads)
            return x

        chained = partial(jax.jit(chain), given, kernel)
        seconds = median(partial(_finished, chained), rounds) / TIMES
        output = np.asarray(jax.jit(formulation)(given, kernel))
        off = output - reference.transpose(axes)
        found.append((name, seconds, float(np.sqrt(np.mean(off**2)))))
    return found


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--large", is_flag=True, help="Frames of 240x360 instead.")
def main(rounds: int, large: bool) -> None:
    """Measure every formulation at every shape."""
    lines = []
    for shape in (LARGE,) if large else SHAPES:
        operations = 2 * 27 * np.prod(shape) * shape[-1]
        for name, seconds, off in rows(shape, rounds):
            speed = operations / seconds / 1e9
            lines.append((shape, name, f"{1e3 * seconds:.0f}", f"{speed:.0f}", f"{off:.1e}"))
    publish(HEAD, lines)


if __name__ == "__main__":
    main()
