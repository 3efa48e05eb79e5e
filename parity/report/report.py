"""`Report`: what a comparison found, with the files that it is written to and read from."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from parity.core.exceptions import InputError, escaped
from parity.core.files import write_text
from parity.core.verdicts import of_gradient
from parity.report.contents import Contents
from parity.report.table import csv


class Report(Contents):
    """The outcome of `parity.compare` or of a ladder."""

    def __str__(self) -> str:
        """The text that `parity show` prints."""
        from parity.report.terminal import as_text

        return as_text(self)

    def __repr__(self) -> str:
        found = f"{len(self.rows)} rows, {len(self.faults)} faults"
        return f"<Report {escaped(self.name)}: {self.verdict}, {found}>"

    def to_csv(self, path: str | Path) -> None:
        """Write the table."""
        write_text(Path(path), csv(self.table))

    def to_json(self, path: str | Path) -> None:
        """Write everything, in the form that `schema.json` beside this file describes."""
        from parity.report.as_json import as_json

        write_text(Path(path), as_json(self))

    @classmethod
    def from_json(cls, path: str | Path) -> "Report":
        """Read what `to_json` wrote, or `report.json` of a folder; it has everything but the
        arrays, `outputs` and `repro`.

        Raises `InputError` for whatever is no report of this format.
        """
        from parity.report.read import read_report

        found = read_report(path)
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})

    def to_markdown(self, path: str | Path) -> None:
        """Write a summary for people."""
        from parity.report.markdown import as_markdown

        write_text(Path(path), as_markdown(self))

    def to_junit(self, path: str | Path) -> None:
        """Write JUnit XML: a test case for each module, as build servers list them."""
        from parity.report.junit import as_junit

        write_text(Path(path), as_junit(self))

    def to_html(self, path: str | Path) -> None:
        """Write everything as one page for browsers, which needs no network."""
        from parity.report.html import as_html

        write_text(Path(path), as_html(self))

    def _repr_html_(self) -> str:
        """Verdict, ladder and faults, as a notebook shows them."""
        from parity.report.html import as_notebook

        return as_notebook(self)

    def write(self, folder: str | Path) -> Sequence[Path]:
        """Write `layers.csv`, one CSV per rung, `weights.csv`, `report.json`, `report.md`,
        `report.html` and `junit.xml`.
        """
        from parity.report.folder import write_folder

        return write_folder(self, Path(folder))

    def write_repro(self, folder: str | Path, make: str) -> Sequence[Path]:
        """Write the call of the first fault as arrays and a script that shows the deviation.

        `make` names, as `module:function`, what gives the torch module, the NNX module and the
        arguments, as for `parity compare`; of a ladder, as `module:attribute`, its `parity.Pair`.

        Raises:
            InputError: there is no fault, its call was not kept (`keep_repro=True`), or it cannot
                be made again by itself.
        """
        from parity.report.repro import write_repro

        if self.repro is None:
            why = "the report has no fault" if not self.faults else "compare with keep_repro=True"
            if self.faults and of_gradient(self.faults[0].case, self.faults[0].leaf):
                why = "the first fault is one of gradients, and a repro shows outputs"
            raise InputError(f"repro: there is no call to write: {why}")
        return write_repro(self.repro, Path(folder), make)
