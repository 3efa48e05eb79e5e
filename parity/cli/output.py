"""Output of a command: folders, progress, what is printed, the exit code."""

import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from parity.core.exceptions import InputError, printable
from parity.core.files import writable

if TYPE_CHECKING:
    from rich.console import Console

    from parity.host.progress import Progress
    from parity.report import Report

PROFILE = click.option(
    "--profile", metavar="DIR", help="Also profile the run, with the calls of modules by name."
)
REPRO = click.option(
    "--repro",
    metavar="DIR",
    help="Write the call of the first fault there: its arrays, and a script that shows it.",
)
OPEN = click.option("--open", "opened", is_flag=True, help="Open the page of the report.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else."
)
QUIET = click.option(
    "--quiet", is_flag=True, help="No progress; print only what is wrong, and the verdict."
)

FOLDERS = ("out", "repro", "profile")
"""The options that name a folder."""


@dataclass(frozen=True)
class Output:
    """Options of a command on what to write and to print."""

    quiet: bool
    as_json: bool
    out: str | None
    repro: str | None = None
    profile: str | None = None
    opened: bool = False

    @cached_property
    def console(self) -> "Console":
        """Standard error, where progress goes."""
        from rich.console import Console

        return Console(stderr=True, quiet=self.quiet)

    def folder(self, default: str, partial: bool = False) -> Path:
        """Make the folder that `--out` names, else the default one.

        One on a part does not take the place of one on the whole.
        """
        return writable(Path(self.out or f"{default}{'-part' if partial else ''}"))

    @contextmanager
    def progress(self) -> Iterator["Progress"]:
        """Make the folders that were named, then show progress during the block."""
        from parity.report.terminal import shown_progress

        for name in FOLDERS:
            if folder := getattr(self, name):
                writable(Path(folder), f"--{name}")
        with shown_progress(self.console) as progress:
            yield progress

    @contextmanager
    def measured(self, *frameworks: str) -> Iterator[None]:
        """Profile the block if that was asked for, and say in which precision these computed."""
        from parity.host.environment import effective_precision
        from parity.host.profile import profiled

        with profiled(Path(self.profile) if self.profile else None):
            yield
        found = ", ".join(f"{name} {one}" for name, one in effective_precision(frameworks).items())
        self.console.print(f"effective precision of float32 products: {found}", highlight=False)

    def end(self, report: "Report", folder: Path, make: str = "") -> NoReturn:
        """Write the report, and the call of its first fault, and print what was asked for.

        `make` makes the port, as for `Report.write_repro`. Exits with 1 if a gate did not hold.
        """
        from parity.report.as_json import as_json
        from parity.report.terminal import output, show, show_verdict

        written = report.write(folder)
        if self.as_json:
            click.echo(as_json(report), nl=False)
        elif self.quiet:
            show_verdict(report, output(), reasons=not report.faults)
        else:
            show(report, output())
            click.echo(f"wrote {len(written)} files to {folder}")
        try:
            shown = report.write_repro(self.repro, make) if self.repro else ()
            if shown and not (self.quiet or self.as_json):
                click.echo(f"wrote {len(shown)} files to {self.repro}; run {shown[-1]}")
        except InputError as error:  # the report stands all the same
            click.echo(f"parity: {printable(error)}", err=True)
        page = folder / "report.html"
        if not (self.quiet or self.as_json):
            click.echo(f"page: {page}")
        if self.opened and not webbrowser.open(page.resolve().as_uri()):
            click.echo(f"parity: no browser was found; open {page} in one", err=True)
        sys.exit(0 if report.holds else 1)


def with_output(
    out: str, *options: Callable[[Any], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options in this order, `--json` and `--out`, whose help is `out`.

    Those of `Output` are handed on as one `output`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            names = given.keys() & Output.__dataclass_fields__.keys()
            function(output=Output(**{name: given.pop(name) for name in names}), **given)

        for option in (click.option("--out", metavar="DIR", help=out), JSON, *reversed(options)):
            option(command)
        return command

    return decorate
