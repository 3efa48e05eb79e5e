"""`parity run`: the ladder of a registered pair."""

from pathlib import Path

import click

from parity.cli.ending import end
from parity.cli.options import (
    CONFIG,
    DEPTH,
    EAGER,
    EMULATE,
    FRAMES,
    JSON,
    ONLY,
    PAIR,
    PROFILE,
    QUIET,
    REPRO,
    SEED,
    SIZE,
    VIDEO,
    default_folder,
    find_pair,
    place_of,
)
from parity.core.exceptions import InputError
from parity.core.files import writable


@click.command()
@PAIR
@VIDEO
@FRAMES
@SIZE
@click.option("--weights", metavar="DIR_OR_REPO", help="Checkpoint for both sides.")
@CONFIG
@SEED
@ONLY
@DEPTH
@EMULATE
@EAGER
@REPRO
@PROFILE
@QUIET
@JSON
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
    eager: bool,
    repro: str | None,
    profile: str | None,
    quiet: bool,
    as_json: bool,
    out: str | None,
) -> None:
    """Run the ladder of PAIR: a registered name, or module:attribute of one of yours.

    --json prints what report.json holds. Files are written in any case.
    """
    from rich.console import Console

    from parity.host.profile import profiled
    from parity.report.terminal import shown_progress

    if weights and config:
        raise InputError("--weights brings its own configuration: leave --config out")
    if out:
        writable(Path(out))
    if repro:
        writable(Path(repro), "--repro")
    profile_folder = writable(Path(profile), "--profile") if profile else None
    console = Console(stderr=True, quiet=quiet)
    with shown_progress(console) as progress:
        # the frameworks are imported here, which takes seconds
        chosen = find_pair(pair)
        folder = writable(Path(out) if out else default_folder(chosen.name, only, depth))
        from parity.host.environment import effective_precision
        from parity.pipeline import run_pair

        precision = ", ".join(f"{name} {found}" for name, found in effective_precision().items())
        console.print(f"effective precision of float32 products: {precision}", highlight=False)
        with profiled(profile_folder):
            report = run_pair(
                chosen,
                video=video,
                frames=frames,
                size=size,
                weights=weights,
                config=config,
                seed=seed,
                emulate=emulate,
                eager=eager,
                only=only,
                depth=depth,
                keep_repro=repro is not None,
                progress=progress,
                own_process=True,
            )
    end(report, folder, quiet=quiet, as_json=as_json, repro=repro, make=place_of(pair))
