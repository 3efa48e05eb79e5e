"""`parity history`: what a comparison gave from commit to commit."""

import sys
from pathlib import Path

import click

from parity.cli.diff import factor_of
from parity.cli.output import JSON


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--add", metavar="REPORT", help="Keep this report, or the one in this folder, first.")
@click.option("--only", metavar="GLOB", default="*", help="The figures of these modules, by path.")
@click.option(
    "--fail-if-worse",
    metavar="FACTOR",
    callback=factor_of,
    help="Compare the newest with the last one before it that passed, as `parity diff` does, and "
    "exit with 1 if it is worse. If none passed before, exit with 1 unless the newest passes.",
)
@JSON
def history(
    folder: Path, add: str | None, only: str, fail_if_worse: float | None, as_json: bool
) -> None:
    """Show the largest R and MAE of each report that a folder keeps.

    The oldest is first. Reports are kept as NUMBER_COMMIT.json. Exits with 0 without
    --fail-if-worse.

    \b
    Example, after each commit:
      parity history .parity --add reports/mine --fail-if-worse 2x
    """
    from parity.report import history as kept
    from parity.report.as_json import dumps
    from parity.report.show_diff import show_diff
    from parity.report.terminal import WIDE, output

    if add is not None:
        kept.add(add, folder)
    reports = kept.history(folder)
    points = kept.points(reports, only)
    newest = points[-1]
    good = None if fail_if_worse is None else kept.since_last_good(reports)
    holds = good[1].holds(fail_if_worse) if good and fail_if_worse else newest.verdict == "PASS"
    if as_json:
        since = {"last_good": good[0] if good else None, "holds": holds} if fail_if_worse else {}
        click.echo(dumps({"reports": [vars(point) for point in points], **since}, indent=1))
    else:
        console = output(WIDE)
        kept.show_history(points, console)
        if good:
            console.print(f"number {newest.number} since number {good[0]}, which passed:")
            show_diff(good[1], console, fail_if_worse)
        elif fail_if_worse is not None:
            console.print(f"no report of these inputs passed before: {newest.verdict}")
    sys.exit(0 if fail_if_worse is None or holds else 1)
