"""`parity check`: the port of a registered pair against a golden trace."""

from pathlib import Path
from typing import Any

import click

from parity.cli.options import EAGER, EMULATE, find_pair, place_of, registered
from parity.cli.output import OPEN, PROFILE, QUIET, Output, with_output
from parity.core.exceptions import InputError

OUT = "Where the report goes  [default: reports/PAIR-check]"


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--pair",
    help="Whose port to check: a registered name, or module:attribute of one of yours  "
    "[default: the pair that was recorded]",
)
@with_output(OUT, EMULATE, EAGER, PROFILE, QUIET, OPEN)
def check(trace: Path, pair: str | None, output: Output, **how: Any) -> None:
    """Check the port of a pair against a golden trace.

    TRACE is a folder that `parity record` wrote. PyTorch is not needed. --json prints what
    report.json holds. Files are written in any case.

    \b
    Example:
      parity check traces/mine --open
    """
    from parity.traces.index import read_index

    if pair:
        place_of(pair)  # a name that is not registered is said before any file is read
    index = read_index(trace)
    if pair is None and index.pair not in registered():  # a trace says no module to import
        raise InputError(f"{trace}: of pair {index.pair!r}, which is not registered; use --pair")
    with output.progress() as progress:
        chosen = find_pair(pair or index.pair)
        from parity.traces.check import check_trace

        folder = output.folder(f"reports/{chosen.name}-check", bool(index.partial))
        with output.measured("jax"):
            report = check_trace(trace, chosen, progress=progress, own_process=True, **how)
    output.end(report, folder)
