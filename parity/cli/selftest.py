"""`parity selftest`: known mistakes, made in the port of a registered pair."""

import sys
from pathlib import Path

import click

from parity.cli.options import PROFILE, find_pair, writable


@click.command()
@click.argument("pair", default="cogvideox")
@click.option("--config", default="small", show_default=True, help="Configuration of the models.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Each draws new weights, and for each mistake a module to make it in.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--only", metavar="GLOB", default="*", help="Mistakes by name.")
@PROFILE
@click.option("--out", metavar="DIR", help="Where the table goes  [default: reports/PAIR-selftest]")
def selftest(
    pair: str, config: str, rounds: int, seed: int, only: str, profile: str | None, out: str | None
) -> None:
    """Make known mistakes in the port of PAIR, and see whether they are found."""
    from rich.console import Console

    profile_folder = writable(Path(profile), "--profile") if profile else None
    chosen = find_pair(pair)
    folder = writable(Path(out or f"reports/{chosen.name}-selftest"))

    from parity.profile import profiled
    from parity.report.terminal import shown_progress
    from parity.selftest import bench
    from parity.selftest.show import show, write

    with shown_progress(Console(stderr=True)) as progress, profiled(profile_folder):
        result = bench.selftest(
            chosen, config=config, rounds=rounds, seed=seed, only=only, progress=progress
        )
    console = Console()
    show(result, console if console.is_terminal else Console(width=100))
    click.echo(f"wrote {write(result, folder)}")
    sys.exit(0 if result else 1)
