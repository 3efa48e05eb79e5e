"""`parity run`: the ladder of a registered pair."""

from typing import Any

import click

from parity.cli.options import (
    DEPTH,
    EAGER,
    EMULATE,
    ONLY,
    PAIR,
    SEED,
    find_pair,
    place_of,
)
from parity.cli.output import PROFILE, QUIET, REPRO, Output, with_output
from parity.cli.pair_command import PairCommand


@click.command(cls=PairCommand)
@PAIR
@SEED
@ONLY
@DEPTH
@EMULATE
@EAGER
@with_output("Where the report goes  [default: reports/PAIR]", REPRO, PROFILE, QUIET)
def run(
    pair: str,
    seed: int,
    only: tuple[str, ...],
    depth: int | None,
    emulate: str | None,
    eager: bool,
    output: Output,
    **options: Any,
) -> None:
    """Run the ladder of PAIR: a registered name, or module:attribute of one of yours.

    Options that the pair has of its own come after its name: see `parity run PAIR --help`.
    --json prints what report.json holds. Files are written in any case.
    """
    with output.progress() as progress:
        chosen = find_pair(pair)
        folder = output.folder(f"reports/{chosen.name}", bool(only) or depth is not None)
        from parity.pipeline import run_pair

        with output.measured("jax", "torch"):
            report = run_pair(
                chosen,
                options,
                seed=seed,
                emulate=emulate,
                eager=eager,
                only=only,
                depth=depth,
                keep_repro=output.repro is not None,
                progress=progress,
                own_process=True,
            )
    output.end(report, folder, place_of(pair))
