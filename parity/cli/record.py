"""`parity record`: a golden trace of the reference of a registered pair."""

import json
from typing import Any

import click

from parity.cli.options import DEPTH, ONLY, SEED, of_a_part
from parity.cli.output import Output
from parity.cli.pair_command import pair_command

OUT = "Where the trace goes  [default: traces/PAIR]"
QUIET = click.option("--quiet", is_flag=True, help="No progress; print only what is wrong.")
SHARD_SIZE = click.option(
    "--shard-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="MB",
    help="How large a file may be, in megabytes.",
)


@pair_command(OUT, SEED, ONLY, DEPTH, SHARD_SIZE, QUIET)
def record(
    pair: str, chosen: Any, options: dict[str, Any], shard_size: int, output: Output, **how: Any
) -> None:
    """Run the PyTorch side of PAIR once and write all that `parity check` needs.

    A recording that was killed goes on when the same command is given again. --json prints what was
    written. Options that the pair has of its own come after its name: see `parity record PAIR
    --help`.
    """
    with output.progress() as progress:
        folder = output.folder(f"traces/{chosen.name}", of_a_part(how))
        from parity.traces.record import record_pair

        how |= {"shard_size": shard_size * 10**6, "progress": progress}
        recording = record_pair(chosen, folder, options, **how)
    if output.as_json:
        click.echo(json.dumps({**vars(recording), "folder": str(folder)}, indent=1))
    elif not output.quiet:
        kept = f", {recording.kept} of them recorded before" if recording.kept else ""
        click.echo(f"{recording.cases} cases{kept}, {recording.nbytes / 1e6:.1f} MB in {folder}")
