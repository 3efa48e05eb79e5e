"""`parity run`: the ladder of a registered pair."""

from pathlib import Path
from typing import Any

import click

from parity.cli.ending import end
from parity.cli.options import (
    DEPTH,
    EAGER,
    EMULATE,
    JSON,
    ONLY,
    PAIR,
    PROFILE,
    QUIET,
    REPRO,
    SEED,
    default_folder,
    find_pair,
    place_of,
)
from parity.cli.pair_command import PairCommand
from parity.core.files import writable


@click.command(cls=PairCommand)
@PAIR
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
    **options: Any,
) -> None:
    """Run the ladder of PAIR: a registered name, or module:attribute of one of yours.

    Options that the pair has of its own come after its name: see `parity run PAIR --help`.
    --json prints what report.json holds. Files are written in any case.
    """
    from rich.console import Console

    from parity.host.profile import profiled
    from parity.report.terminal import shown_progress

    if out:
        writable(Path(out))
    if repro:
        writable(Path(repro), "--repro")
    profile_folder = writable(Path(profile), "--profile") if profile else None
    console = Console(stderr=True, quiet=quiet)
    with shown_progress(console) as progress:
        chosen = find_pair(pair)
        folder = writable(Path(out) if out else default_folder(chosen.name, only, depth))
        from parity.host.environment import effective_precision
        from parity.pipeline import run_pair

        precision = ", ".join(f"{name} {found}" for name, found in effective_precision().items())
        console.print(f"effective precision of float32 products: {precision}", highlight=False)
        with profiled(profile_folder):
            report = run_pair(
                chosen,
                options,
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
