"""`parity record`: a golden trace of the reference of a registered pair."""

import json
from pathlib import Path

import click

from parity.cli.options import (
    CONFIG,
    DEPTH,
    FRAMES,
    JSON,
    ONLY,
    PAIR,
    SEED,
    SIZE,
    VIDEO,
    find_pair,
)
from parity.core.exceptions import InputError
from parity.core.files import writable


@click.command()
@PAIR
@VIDEO
@FRAMES
@SIZE
@click.option("--weights", metavar="DIR_OR_REPO", help="Checkpoint of the reference.")
@CONFIG
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
    video: str | None,
    frames: int,
    size: tuple[int, int],
    weights: str | None,
    config: str | None,
    seed: int,
    only: tuple[str, ...],
    depth: int | None,
    shard_size: int,
    quiet: bool,
    as_json: bool,
    out: str | None,
) -> None:
    """Run the PyTorch side of PAIR once and write all that `parity check` needs.

    A recording that was killed goes on when the same command is given again. --json prints what was
    written.
    """
    from rich.console import Console

    if weights and config:
        raise InputError("--weights brings its own configuration: leave --config out")
    if out:
        writable(Path(out))

    from parity.report.terminal import shown_progress

    with shown_progress(Console(stderr=True, quiet=quiet)) as progress:
        # the frameworks are imported here, which takes seconds
        chosen = find_pair(pair)
        part = "-part" if only or depth is not None else ""
        folder = writable(Path(out or f"traces/{chosen.name}{part}"))
        from parity.traces.record import record_pair

        recording = record_pair(
            chosen,
            folder,
            video=video,
            frames=frames,
            size=size,
            weights=weights,
            config=config,
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
