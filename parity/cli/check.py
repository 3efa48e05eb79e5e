"""`parity check`: the port of a registered pair against a golden trace."""

import sys
from pathlib import Path

import click

from parity.cli.options import PROFILE, find_pair, writable
from parity.emulate import MEANINGS


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--pair",
    default="cogvideox",
    show_default=True,
    help="Whose port to check: a registered name, or module:attribute of one of yours.",
)
@click.option(
    "--emulate",
    type=click.Choice(list(MEANINGS)),
    help="Also run the port as hardware with coarser products would, as in `parity run`.",
)
@click.option("--disable-jit", is_flag=True, help="Run the port operation by operation.")
@PROFILE
@click.option("--out", metavar="DIR", help="Where the report goes  [default: reports/PAIR-check]")
def check(
    trace: Path,
    pair: str,
    emulate: str | None,
    disable_jit: bool,
    profile: str | None,
    out: str | None,
) -> None:
    """Check the port of a pair against the golden trace in folder TRACE; PyTorch is not needed."""
    from rich.console import Console

    if out:
        writable(Path(out))
    profile_folder = writable(Path(profile), "--profile") if profile else None
    chosen = find_pair(pair)
    folder = writable(Path(out or f"reports/{chosen.name}-check"))

    from parity.golden.check import check_trace
    from parity.probe import of_jax
    from parity.profile import profiled
    from parity.report.terminal import show, shown_progress

    console = Console(stderr=True)
    console.print(f"effective precision of float32 products: jax {of_jax()}", highlight=False)
    with shown_progress(console) as progress, profiled(profile_folder):
        report = check_trace(
            trace,
            chosen,
            emulate=emulate,
            disable_jit=disable_jit,
            progress=progress,
            own_process=True,
        )
    written = report.write(folder)
    console = Console()
    show(report, console if console.is_terminal else Console(width=100))
    click.echo(f"wrote {len(written)} files to {folder}")
    sys.exit(0 if report else 1)
