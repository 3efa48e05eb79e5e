"""`parity diff`: what changed from one report to another, and the ratchet."""

import math
import sys
from contextlib import suppress
from pathlib import Path

import click

from parity.cli.output import JSON
from parity.core.exceptions import InputError
from parity.core.files import write_text


def factor_of(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the factor of at least 1 that the text says, with or without an x."""
    if text is None:
        return None
    with suppress(ValueError):
        factor = float(text.removesuffix("x"))
        if 1 <= factor < math.inf:
            return factor
    raise click.BadParameter(f"{text!r} is not a factor of at least 1, as in 2x", context, option)


@click.command()
@click.argument("before")
@click.argument("after")
@click.option(
    "--fail-if-worse",
    metavar="FACTOR",
    callback=factor_of,
    help="Exit with 1 if a row is worse by more than this, if its verdict is, if a row vanished, "
    "or if a new one fails; with 2 if the two runs had other inputs.",
)
@click.option("--html", metavar="FILE", help="Also write a page with every change.")
@JSON
def diff(
    before: str, after: str, fail_if_worse: float | None, html: str | None, as_json: bool
) -> None:
    """Show what is worse, better, new and gone between two reports.

    BEFORE, the norm, and AFTER are folders or report.json files. Of each row two figures are
    compared: R, or where that was not measured the relative local error; and the inclusive MAE, or
    where that was not measured the free-running one. What is below R 1.5, a relative error of 32
    roundings (1.9e-6 in float32) or an MAE of 1e-6 counts as that: two machines round differently.
    Exits with 0 without --fail-if-worse.

    \b
    Example:
      parity diff reports/before reports/after --fail-if-worse 2x
    """
    from parity.report import Report
    from parity.report.diff import diff as compare
    from parity.report.show_diff import show_diff, to_json
    from parity.report.terminal import WIDE, output

    found = compare(Report.from_json(before), Report.from_json(after))
    if fail_if_worse is not None and found.other_inputs:
        raise InputError(
            f"--fail-if-worse: {before} and {after} are of other inputs"
            f" ({'; '.join(found.other_inputs)}), so errors cannot be compared; run both alike"
        )
    if html is not None:
        from parity.report.html.page import diff_html

        write_text(Path(html), diff_html(found, fail_if_worse))
    if as_json:
        click.echo(to_json(found, fail_if_worse))
    else:
        show_diff(found, output(WIDE), fail_if_worse)
        if html is not None:
            click.echo(f"page: {html}")
    sys.exit(0 if fail_if_worse is None or found.holds(fail_if_worse) else 1)
