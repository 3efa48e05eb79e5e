"""`parity record`: a golden trace of the reference of a registered pair."""

import json
from pathlib import Path
from typing import Any

import click

from parity.cli.options import (
    DEPTH,
    JSON,
    ONLY,
    PAIR,
    SEED,
    find_pair,
)
from parity.cli.pair_command import PairCommand
from parity.core.files import writable


@click.command(cls=PairCommand)
@PAIR
@SEED
@ONLY
@DEPTH
@click.option(
    "--shard-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="MB",
    help="How large a file may be, in megabytes.",
)
@click.option("--quiet", is_flag=True, help="No progress; print only what is wrong.")
@JSON
@click.option("--out", metavar="DIR", help="Where the trace goes  [default: traces/PAIR]")
def record(
    pair: str,
    seed: int,
    only: tuple[str, ...],
    depth: int | None,
    shard_size: int,
    quiet: bool,
    as_json: bool,
    out: str | None,
    **options: Any,
) -> None:
    """Run the PyTorch side of PAIR once and write all that `parity check` needs.

    A recording that was killed goes on when the same command is given again. --json prints what was
    written. Options that the pair has of its own come after its name: see `parity record PAIR
    --help`.
    """
    from rich.console import Console

    if out:
        writable(Path(out))

    from parity.report.terminal import shown_progress

    with shown_progress(Console(stderr=True, quiet=quiet)) as progress:
        chosen = find_pair(pair)
        part = "-part" if only or depth is not None else ""
        folder = writable(Path(out or f"traces/{chosen.name}{part}"))
        from parity.traces.record import record_pair

        recording = record_pair(
            chosen,
            folder,
            options,
            seed=seed,
            only=only,
            depth=depth,
            shard_size=shard_size * 10**6,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps({**vars(recording), "folder": str(folder)}, indent=1))
    elif not quiet:
        kept = f", {recording.kept} of them recorded before" if recording.kept else ""
        click.echo(f"{recording.cases} cases{kept}, {recording.nbytes / 1e6:.1f} MB in {folder}")
