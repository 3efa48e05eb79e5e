"""`parity check`: the port of a registered pair against a golden trace."""

from pathlib import Path

import click

from parity.cli.ending import end
from parity.cli.options import EAGER, EMULATE, JSON, PROFILE, QUIET, find_pair
from parity.core.files import writable


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--pair",
    help="Whose port to check: a registered name, or module:attribute of one of yours  "
    "[default: the pair that was recorded]",
)
@EMULATE
@EAGER
@PROFILE
@QUIET
@JSON
@click.option("--out", metavar="DIR", help="Where the report goes  [default: reports/PAIR-check]")
def check(
    trace: Path,
    pair: str | None,
    emulate: str | None,
    eager: bool,
    profile: str | None,
    quiet: bool,
    as_json: bool,
    out: str | None,
) -> None:
    """Check the port of a pair against the golden trace in folder TRACE; PyTorch is not needed.

    --json prints what report.json holds. Files are written in any case.
    """
    from rich.console import Console

    if out:
        writable(Path(out))
    profile_folder = writable(Path(profile), "--profile") if profile else None
    from parity.traces.index import read_index

    asked = find_pair(pair) if pair else None
    index = read_index(trace)
    chosen = asked or find_pair(index.pair)

    from parity.host.precision import of_jax
    from parity.host.profile import profiled
    from parity.report.terminal import shown_progress
    from parity.traces.check import check_trace

    # one on a part does not take the place of one on the whole
    part = "-part" if index.partial else ""
    folder = writable(Path(out or f"reports/{chosen.name}-check{part}"))
    console = Console(stderr=True, quiet=quiet)
    console.print(f"effective precision of float32 products: jax {of_jax()}", highlight=False)
    with shown_progress(console) as progress, profiled(profile_folder):
        report = check_trace(
            trace,
            chosen,
            emulate=emulate,
            eager=eager,
            progress=progress,
            own_process=True,
        )
    end(report, folder, quiet=quiet, as_json=as_json)
