"""Options that the benchmarks' commands have in common."""

from pathlib import Path

import click

ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Runs of each side, in turn, after one that is not counted.",
)
OUT = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("reports/bench"),
    metavar="DIR",
    show_default=True,
)
