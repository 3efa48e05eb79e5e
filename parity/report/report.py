"""`Report`: what a comparison found, with the files that it is written to and read from."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from parity.core.exceptions import InputError
from parity.core.files import write_all, write_text
from parity.core.verdicts import of_gradient
from parity.report import repro
from parity.report.as_json import as_json
from parity.report.contents import Contents
from parity.report.junit import as_junit
from parity.report.markdown import as_markdown
from parity.report.read import read_report
from parity.report.table import rows_csv
from parity.report.weights import weights_csv


class Report(Contents):
    """The outcome of `parity.compare` or of a ladder."""

    def __str__(self) -> str:
        """The text that `parity show` prints."""
        from parity.report.terminal import as_text

        return as_text(self)

    def to_csv(self, path: str | Path) -> None:
        """Write the table."""
        write_text(Path(path), rows_csv(self.rows))

    def to_json(self, path: str | Path) -> None:
        """Write everything, in the form that `schema.json` beside this file describes."""
        write_text(Path(path), as_json(self))

    @classmethod
    def from_json(cls, path: str | Path) -> "Report":
        """Read what `to_json` wrote, or `report.json` of a folder; it has everything but the
        arrays, `outputs` and `repro`.

        Raises `InputError` for whatever is no report of this format.
        """
        return read_report(path, cls)

    def to_markdown(self, path: str | Path) -> None:
        """Write a summary for people."""
        write_text(Path(path), as_markdown(self))

    def to_junit(self, path: str | Path) -> None:
        """Write JUnit XML: a test case for each module, as build servers list them."""
        write_text(Path(path), as_junit(self))

    def to_html(self, path: str | Path) -> None:
        """Write everything as one page for browsers, which needs no network."""
        from parity.report.html.page import as_html

        write_text(Path(path), as_html(self))
        self._pages.append(Path(path).resolve())

    @cached_property
    def _pages(self) -> list[Path]:
        """Where pages of this report were written, the last one last."""
        return []

    def _repr_html_(self) -> str:
        """Verdict, ladder and faults, as a notebook shows them, with a link to the last page."""
        from parity.report.html.page import as_notebook

        return as_notebook(self, self._pages[-1] if self._pages else None)

    def write(self, folder: str | Path) -> Sequence[Path]:
        """Write `layers.csv`, one CSV per rung, `weights.csv`, `report.json`, `report.md`,
        `report.html` and `junit.xml`.
        """
        from parity.report.html.page import as_html

        files = {"layers.csv": rows_csv(self.rows)}
        for rung in self.rungs:
            files[f"{rung.name}.csv"] = rows_csv(x for x in self.rows if x.rung == rung.name)
        files |= {
            "weights.csv": weights_csv(self.weights),
            "report.md": as_markdown(self),
            "report.json": as_json(self),
            "report.html": as_html(self),
            "junit.xml": as_junit(self),
        }
        write_all(Path(folder), files)
        self._pages.append(Path(folder, "report.html").resolve())
        return [Path(folder) / name for name in files]

    def write_repro(self, folder: str | Path, make: str) -> Sequence[Path]:
        """Write the call of the first fault as arrays and a script that shows the deviation.

        `make` names, as `module:function`, what gives the torch module, the NNX module and the
        arguments, as for `parity compare`; of a ladder, as `module:attribute`, its `parity.Pair`.

        Raises:
            InputError: there is no fault, its call was not kept (`keep_repro=True`), or it cannot
                be made again by itself.
        """
        if self.repro is None:
            why = "the report has no fault" if not self.faults else "compare with keep_repro=True"
            if self.faults and of_gradient(self.faults[0].case, self.faults[0].leaf):
                why = "the first fault is one of gradients, and a repro shows outputs"
            raise InputError(f"repro: there is no call to write: {why}")
        return repro.write_repro(self.repro, Path(folder), make)
