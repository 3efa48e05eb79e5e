"""`parity record`: a golden trace of the reference of a registered pair."""

import json
from typing import Any

import click

from parity.cli.options import DEPTH, ONLY, PAIR, SEED, find_pair
from parity.cli.output import Output, with_output
from parity.cli.pair_command import PairCommand


@click.command(cls=PairCommand)
@PAIR
@SEED
@ONLY
@DEPTH
@with_output(
    "Where the trace goes  [default: traces/PAIR]",
    click.option("--quiet", is_flag=True, help="No progress; print only what is wrong."),
)
def record(
    pair: str,
    seed: int,
    only: tuple[str, ...],
    depth: int | None,
    output: Output,
    **options: Any,
) -> None:
    """Run the PyTorch side of PAIR once and write all that `parity check` needs.

    --json prints what was written. Options that the pair has of its own come after its name: see
    `parity record PAIR --help`.
    """
    with output.progress() as progress:
        chosen = find_pair(pair)
        folder = output.folder(f"traces/{chosen.name}", bool(only) or depth is not None)
        from parity.traces.record import record_pair

        written = record_pair(
            chosen,
            folder,
            options,
            seed=seed,
            only=only,
            depth=depth,
            progress=progress,
        )
    if output.as_json:
        click.echo(json.dumps({**vars(written), "folder": str(folder)}, indent=1))
    elif not output.quiet:
        click.echo(f"{written.cases} cases, {written.nbytes / 1e6:.1f} MB in {folder}")
