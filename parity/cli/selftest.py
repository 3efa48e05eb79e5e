"""`parity selftest`: known mistakes, made in the port of a registered pair."""

import sys
from pathlib import Path
from typing import Any

import click

from parity.cli.options import JSON, PAIR, PROFILE, QUIET, SEED, find_pair
from parity.cli.pair_command import PairCommand
from parity.core.files import writable


@click.command(cls=PairCommand)
@PAIR
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Each draws new weights, and for each mistake a module to make it in.",
)
@SEED
@click.option("--only", metavar="GLOB", default="*", help="Mistakes by name.")
@PROFILE
@QUIET
@JSON
@click.option("--out", metavar="DIR", help="Where the table goes  [default: reports/PAIR-selftest]")
def selftest(
    pair: str,
    rounds: int,
    seed: int,
    only: str,
    profile: str | None,
    quiet: bool,
    as_json: bool,
    out: str | None,
    **options: Any,
) -> None:
    """Make known mistakes in the port of PAIR, and see whether they are found.

    --json prints every trial. The table is written in any case. Options that the pair has of its
    own come after its name: see `parity selftest PAIR --help`.
    """
    from rich.console import Console

    from parity.host.profile import profiled
    from parity.report.terminal import output, shown_progress

    profile_folder = writable(Path(profile), "--profile") if profile else None
    with shown_progress(Console(stderr=True, quiet=quiet)) as progress:
        chosen = find_pair(pair)
        folder = writable(Path(out or f"reports/{chosen.name}-selftest"))
        from parity.selftest import bench
        from parity.selftest.show import show, show_verdict, to_json, write

        with profiled(profile_folder):
            result = bench.selftest(
                chosen, options, rounds=rounds, seed=seed, only=only, progress=progress
            )
    written = write(result, folder)
    if as_json:
        click.echo(to_json(result))
    elif quiet:
        show_verdict(result, output())
    else:
        show(result, output())
        click.echo(f"wrote {written}")
    sys.exit(0 if result else 1)
