"""`parity run`: the ladder of a registered pair."""

import sys
from pathlib import Path

import click

from parity.cli.options import JSON, PROFILE, QUIET, Size, find_pair, writable
from parity.emulate import MEANINGS
from parity.errors import InputError


@click.command()
@click.argument("pair", default="cogvideox")
@click.option("--video", metavar="FILE", help="Clip to use: a video or an .npy (T, H, W, 3).")
@click.option("--frames", type=click.IntRange(1), default=17, show_default=True)
@click.option("--size", type=Size(), default="64x64", show_default=True, help="Window, in pixels.")
@click.option("--weights", metavar="DIR_OR_REPO", help="Checkpoint for both sides.")
@click.option("--config", metavar="NAME_OR_FILE", help="Random weights of this configuration.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--emulate",
    type=click.Choice(list(MEANINGS)),
    help="Also run the port as hardware with coarser products would, and report what that adds; "
    "verdict and table stay those of the port as it runs here. "
    + " ".join(f"{name}: {meaning}." for name, meaning in MEANINGS.items()),
)
@click.option(
    "--disable-jit",
    is_flag=True,
    help="Run the port operation by operation: modules inside its own programs and loops are seen "
    "call by call.",
)
@PROFILE
@QUIET
@JSON
@click.option("--out", metavar="DIR", help="Where the report goes  [default: reports/PAIR]")
def run(
    pair: str,
    video: str | None,
    frames: int,
    size: tuple[int, int],
    weights: str | None,
    config: str | None,
    seed: int,
    emulate: str | None,
    disable_jit: bool,
    profile: str | None,
    quiet: bool,
    as_json: bool,
    out: str | None,
) -> None:
    """Run the ladder of PAIR: a registered name, or module:attribute of one of yours.

    --json prints what report.json holds. Files are written in any case.
    """
    from rich.console import Console

    from parity.profile import profiled
    from parity.report.as_json import as_json as dumped
    from parity.report.terminal import output, show, show_verdict, shown_progress

    if weights and config:
        raise InputError("--weights brings its own configuration: leave --config out")
    if out:
        writable(Path(out))
    profile_folder = writable(Path(profile), "--profile") if profile else None
    console = Console(stderr=True, quiet=quiet)
    with shown_progress(console) as progress:
        # the frameworks are imported here, which takes seconds
        chosen = find_pair(pair)
        folder = writable(Path(out or f"reports/{chosen.name}"))
        from parity.environment import effective_precision
        from parity.pipeline import run_pair

        precision = ", ".join(f"{name} {found}" for name, found in effective_precision().items())
        console.print(f"effective precision of float32 products: {precision}", highlight=False)
        with profiled(profile_folder):
            report = run_pair(
                chosen,
                video=video,
                frames=frames,
                size=size,
                weights=weights,
                config=config,
                seed=seed,
                emulate=emulate,
                disable_jit=disable_jit,
                progress=progress,
                own_process=True,
            )
    written = report.write(folder)
    if as_json:
        click.echo(dumped(report), nl=False)
    elif quiet:
        show_verdict(report, output())
    else:
        show(report, output())
        click.echo(f"wrote {len(written)} files to {folder}")
    sys.exit(0 if report else 1)
