"""`parity record`: a golden trace of the reference of a registered pair."""

from pathlib import Path

import click

from parity.cli.options import CONFIG, FRAMES, PAIR, SEED, SIZE, VIDEO, find_pair, writable
from parity.errors import InputError


@click.command()
@PAIR
@VIDEO
@FRAMES
@SIZE
@click.option("--weights", metavar="DIR_OR_REPO", help="Checkpoint of the reference.")
@CONFIG
@SEED
@click.option(
    "--only",
    metavar="GLOB",
    help="Record the calls of these modules only, by path; the code of the others counts with the "
    "module around them.",
)
@click.option(
    "--shard-size",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="MB",
    help="How large a file may be, in megabytes.",
)
@click.option("--out", metavar="DIR", help="Where the trace goes  [default: traces/PAIR]")
def record(
    pair: str,
    video: str | None,
    frames: int,
    size: tuple[int, int],
    weights: str | None,
    config: str | None,
    seed: int,
    only: str | None,
    shard_size: int,
    out: str | None,
) -> None:
    """Run the PyTorch side of PAIR once and write all that `parity check` needs.

    A recording that was killed goes on when the same command is given again.
    """
    from rich.console import Console

    if weights and config:
        raise InputError("--weights brings its own configuration: leave --config out")
    if out:
        writable(Path(out))
    chosen = find_pair(pair)
    folder = writable(Path(out or f"traces/{chosen.name}"))

    from parity.golden.record import record_pair
    from parity.report.terminal import shown_progress

    with shown_progress(Console(stderr=True)) as progress:
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
            shard_size=shard_size * 10**6,
            progress=progress,
        )
    kept = f", {recording.kept} of them recorded before" if recording.kept else ""
    click.echo(f"{recording.cases} cases{kept}, {recording.nbytes / 1e6:.1f} MB in {folder}")
