"""Costs and gains of compiling: layer by layer, step by step, or a whole call as one program.

    python -m tools.measure_compiling
    python -m tools.measure_compiling --tiny

Every way is a process of its own with nothing compiled before: seconds of the first call and the
median of later ones, and the process's memory at its highest point. Tiled calls are of the small
model: what counts there is how many programs, and how large ones, the tiles make.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from tools.tables import publish

WAYS = ("layer by layer", "steps", "one program")
ROUNDS = 3
HEAD = ("encode and decode", "", "first call, s", "later, s", "GiB")
HEADS = (HEAD,)


def measure(way: str, config: str, frames: int, side: int, tile: int) -> dict[str, float]:
    """Encode and decode noise of so many frames, `side` pixels high and wide."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from jaxvae import AutoencoderKLCogVideoX
    from jaxvae.pairs.cogvideox.ladder import CONFIGS

    vae = AutoencoderKLCogVideoX(CONFIGS[config], rngs=nnx.Rngs(0))
    vae.eval()
    if tile:
        vae.enable_tiling(tile, tile, 0.25, 0.25)
    video = jax.random.normal(jax.random.key(0), (1, frames, side, side, 3))

    def call(vae: Any, x: Any) -> Any:
        compiled = way != "layer by layer"
        return vae.decode(vae.encode(x, compiled=compiled).mode(), compiled=compiled)

    run: Callable[[], Any] = lambda: call(vae, video)  # noqa: E731
    if way == "one program":
        whole = jax.jit(call)
        run = lambda: whole(vae, video)  # noqa: E731
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        jnp.asarray(jax.block_until_ready(run()))
        seconds.append(time.perf_counter() - start)
    return {
        "first": seconds[0],
        "later": statistics.median(seconds[1:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


@click.command()
@click.option("--tiny", is_flag=True, help="The small model instead of the full one.")
@click.option(
    "--only",
    nargs=5,
    type=str,
    default=None,
    hidden=True,
    help="What a process of its own measures.",
)
def main(tiny: bool, only: tuple[str, ...] | None) -> None:
    """Measure every call in every way."""
    if only:
        way, config, *sizes = only
        click.echo(json.dumps(measure(way, config, *map(int, sizes))))
        return
    full = "small" if tiny else "default"
    calls = [
        (f"{full} model, 9 frames of 64x64", full, 9, 64, 0),
        ("small model, 9 frames, 4 tiles", "small", 9, 28, 16),
        ("small model, 9 frames, 36 tiles", "small", 9, 76, 16),
    ]
    publish(HEAD, [row for name, *call in calls for row in rows(name, call)])


def rows(name: str, call: Sequence[object]) -> Iterator[tuple[str, ...]]:
    """Measure a call in each way."""
    for way in WAYS:
        command = [sys.executable, "-m", "tools.measure_compiling", "--only", way]
        done = subprocess.run(
            [*command, *map(str, call)],
            env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise click.ClickException(f"{name}, {way}: {done.stderr[-1000:]}")
        found = json.loads(done.stdout)
        figures = f"{found['first']:.1f}", f"{found['later']:.2f}", f"{found['memory']:.1f}"
        yield name, way, *figures


if __name__ == "__main__":
    main()
