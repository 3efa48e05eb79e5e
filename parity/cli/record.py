"""`parity record`: a golden trace of the reference of a registered pair."""

import json
from typing import Any

import click

from parity.cli.options import DEPTH, ONLY, SEED, of_a_part
from parity.cli.output import Output
from parity.cli.pair_command import pair_command

OUT = "Where the trace goes  [default: traces/PAIR]"
QUIET = click.option("--quiet", is_flag=True, help="No progress; print only what is wrong.")


@pair_command(OUT, SEED, ONLY, DEPTH, QUIET)
def record(pair: str, chosen: Any, options: dict[str, Any], output: Output, **how: Any) -> None:
    """Record the PyTorch side of a pair, for `parity check`.

    --json prints what was written. Options that the pair has of its own come after its name: see
    `parity record PAIR --help`.

    \b
    Example:
      parity record my_pair:PAIR --out traces/mine
    """
    with output.progress() as progress:
        folder = output.folder(f"traces/{chosen.name}", of_a_part(how))
        from parity.traces.record import record_pair

        written = record_pair(chosen, folder, options, **how, progress=progress)
    if output.as_json:
        click.echo(json.dumps({**vars(written), "folder": str(folder)}, indent=1))
    elif not output.quiet:
        click.echo(f"{written.cases} cases, {written.nbytes / 1e6:.1f} MB in {folder}")
