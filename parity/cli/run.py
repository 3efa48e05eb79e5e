"""`parity run`: the ladder of a registered pair."""

import sys
from pathlib import Path

import click

from parity.cli.options import (
    BUNDLE,
    DEPTH,
    DISABLE_JIT,
    EMULATE,
    ONLY,
    PROFILE,
    Size,
    bundled,
    default_folder,
    find_pair,
    place_of,
    writable,
)
from parity.errors import InputError


@click.command()
@click.argument("pair", default="cogvideox")
@click.option("--video", metavar="FILE", help="Clip to use: a video or an .npy (T, H, W, 3).")
@click.option("--frames", type=click.IntRange(1), default=17, show_default=True)
@click.option("--size", type=Size(), default="64x64", show_default=True, help="Window, in pixels.")
@click.option("--weights", metavar="DIR_OR_REPO", help="Checkpoint for both sides.")
@click.option("--config", metavar="NAME_OR_FILE", help="Random weights of this configuration.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@ONLY
@DEPTH
@EMULATE
@DISABLE_JIT
@BUNDLE
@PROFILE
@click.option("--out", metavar="DIR", help="Where the report goes  [default: reports/PAIR]")
def run(
    pair: str,
    video: str | None,
    frames: int,
    size: tuple[int, int],
    weights: str | None,
    config: str | None,
    seed: int,
    only: tuple[str, ...],
    depth: int | None,
    emulate: str | None,
    disable_jit: bool,
    bundle: str | None,
    profile: str | None,
    out: str | None,
) -> None:
    """Run the ladder of PAIR: a registered name, or module:attribute of one of yours."""
    from rich.console import Console

    if weights and config:
        raise InputError("--weights brings its own configuration: leave --config out")
    if out:
        writable(Path(out))
    if bundle:
        writable(Path(bundle), "--bundle")
    profile_folder = writable(Path(profile), "--profile") if profile else None
    chosen = find_pair(pair)
    folder = writable(Path(out) if out else default_folder(chosen.name, only, depth))

    from parity.environment import effective_precision
    from parity.pipeline import run_pair
    from parity.profile import profiled
    from parity.report.terminal import show, shown_progress

    console = Console(stderr=True)
    precision = ", ".join(f"{name} {found}" for name, found in effective_precision().items())
    console.print(f"effective precision of float32 products: {precision}", highlight=False)
    with shown_progress(console) as progress, profiled(profile_folder):
        report = run_pair(
            chosen,
            video=video,
            frames=frames,
            size=size,
            weights=weights,
            config=config,
            seed=seed,
            emulate=emulate,
            disable_jit=disable_jit,
            only=only,
            depth=depth,
            exhibit=bundle is not None,
            progress=progress,
            own_process=True,
        )
    written = report.write(folder)
    console = Console()
    show(report, console if console.is_terminal else Console(width=100))
    click.echo(f"wrote {len(written)} files to {folder}")
    if bundle:
        bundled(report, Path(bundle), place_of(pair))
    sys.exit(0 if report else 1)
