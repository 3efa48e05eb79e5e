"""`parity run`: the ladder of a registered pair."""

from pathlib import Path
from typing import Any

import click

from parity.cli.ending import end
from parity.cli.options import (
    BUNDLE,
    DEPTH,
    DISABLE_JIT,
    EMULATE,
    JSON,
    ONLY,
    PAIR,
    PROFILE,
    QUIET,
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
@DISABLE_JIT
@BUNDLE
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
    disable_jit: bool,
    bundle: str | None,
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
    if bundle:
        writable(Path(bundle), "--bundle")
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
                disable_jit=disable_jit,
                only=only,
                depth=depth,
                repro=bundle is not None,
                progress=progress,
                own_process=True,
            )
    end(report, folder, quiet=quiet, as_json=as_json, bundle=bundle, make=place_of(pair))
