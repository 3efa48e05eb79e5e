"""End of a command that makes a report: files, what is printed, the exit code."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from parity.core.exceptions import InputError

if TYPE_CHECKING:
    from parity.report import Report


def end(
    report: "Report",
    folder: Path,
    *,
    quiet: bool,
    as_json: bool,
    repro: str | None = None,
    make: str = "",
) -> NoReturn:
    """Write the report, and the call of its first fault to `repro`, and print what was asked for.

    `make` makes the port, as for `Report.write_repro`. Exits with 1 if a gate did not hold.
    """
    from parity.report.as_json import as_json as dumped
    from parity.report.terminal import output, show, show_verdict

    written = report.write(folder)
    if as_json:
        click.echo(dumped(report), nl=False)
    elif quiet:
        show_verdict(report, output())
    else:
        show(report, output())
        click.echo(f"wrote {len(written)} files to {folder}")
    if repro:
        _write_repro(report, Path(repro), make, silent=quiet or as_json)
    sys.exit(0 if report.holds else 1)


def _write_repro(report: "Report", folder: Path, make: str, *, silent: bool) -> None:
    """Write the repro, or say why there is none: the report stands all the same."""
    try:
        written = report.write_repro(folder, make)
    except InputError as error:
        click.echo(f"parity: {error}", err=True)
        return
    if not silent:
        click.echo(f"wrote {len(written)} files to {folder}; run {folder / 'repro.py'}")
