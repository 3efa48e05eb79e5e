"""`Report`: what a comparison found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.core.exceptions import InputError
from parity.core.files import write_all, write_text
from parity.core.measurements import Emulation, NonFinite
from parity.core.pair import Rung
from parity.core.problems import Side
from parity.core.tensors import Weight
from parity.core.verdicts import IDLE, Coverage, Fault, Row, Verdict, of_gradient
from parity.report.table import to_frame, worst_verdict
from parity.report.weights import to_weight_frame, weight_notes

if TYPE_CHECKING:
    import pandas as pd

    from parity.core.repro import Repro


@dataclass(frozen=True)
class Report:
    """The outcome of `parity.compare` or of a ladder.

    `facts` says what was run (inputs, weights, seconds, memory), `environment` on what.
    """

    name: str
    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    coverage: Coverage
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]
    rungs: tuple[Rung, ...] = ()
    inputs: tuple[str, ...] = ()
    """What is weak about the inputs and the weights."""
    weights: tuple[Weight, ...] = ()
    """Every tensor of the reference and the port's leaf that holds it, then the leaves too many."""
    unexercised: tuple[str, ...] = ()
    """What the inputs left out; it takes nothing from what was found on them."""
    outputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the reference returned in the last case, by leaf: NumPy arrays, channel-first."""
    emulations: tuple[Emulation, ...] = ()
    """By case, what emulated hardware would add to the port's error."""
    nonfinite: tuple[NonFinite, ...] = ()
    """By case and side, where the finite numbers are left, if they are."""
    partial: str = ""
    """What was left out on purpose, so that this is no report on the whole port."""
    repro: "Repro | None" = field(default=None, repr=False)
    """The call of the first fault, if it was to be kept."""

    def __bool__(self) -> bool:
        """True only if every gate held and the coverage is complete."""
        return self.verdict in ("PASS", "WARN")

    @cached_property
    def verdict(self) -> Verdict:
        """FAIL if a row fails or something has no counterpart; PASS needs everything observed.

        A leaf that one side does not return makes it a WARN, a call that could not be judged at
        all UNKNOWN.
        """
        if not self.coverage.complete or not self._compared:
            return "FAIL"
        seen: list[Verdict] = ["WARN" if row.one_sided else row.verdict for row in self.rows]
        return worst_verdict([*seen, "WARN"] if self.notes else seen)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know before trusting a PASS."""
        idle = self.coverage.idle
        ran = (f"{len(idle)} modules were {IDLE}: {', '.join(idle[:5])}",) if idle else ()
        lacking = (self._lacking("reference"), self._lacking("port"))
        loose = weight_notes(self.weights, self.coverage, self.faults)
        nothing = "" if self._compared else "no output has an entry: nothing was compared"
        first = (nothing, self.partial, self._missing())
        return (*filter(None, first), *ran, *filter(None, lacking), *loose, *self.inputs)

    @property
    def _compared(self) -> bool:
        """Whether there was a value to compare: that of an empty batch is equal to anything."""
        return any(0 not in row.shape for row in self.rows)

    def _missing(self) -> str:
        found = {
            "modules": self.coverage.unmatched,
            "calls": self.coverage.unmatched_calls,
            "tensors": self.coverage.unmatched_tensors,
        }
        counts = [f"{len(texts)} {what} ({texts[0]})" for what, texts in found.items() if texts]
        return f"without a counterpart, which fails: {', '.join(counts)}" if counts else ""

    def _lacking(self, side: Side) -> str:
        found = [row for row in self.rows if row.one_sided == side]
        if not found:
            return ""
        names = [f"{row.path or '<root>'}#{row.leaf}" for row in found[:5]]
        names += ["..."] if len(found) > 5 else []
        return f"only the {side} returns {len(found)} of the outputs: {', '.join(names)}"

    @property
    def doubts(self) -> tuple[Row, ...]:
        """Rows that neither passed nor failed; each has its reason."""
        return tuple(row for row in self.rows if row.verdict in ("WARN", "UNKNOWN"))

    @property
    def first_fault(self) -> Fault | None:
        """The fault that shows first as the model runs."""
        return self.faults[0] if self.faults else None

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One line per call and output leaf; see `COLUMNS`."""
        return to_frame(self.rows)

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

        return read_report(path)

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
        from parity.report.as_json import as_json
        from parity.report.html import as_html
        from parity.report.junit import as_junit
        from parity.report.markdown import as_markdown

        files = {"layers.csv": csv(self.table)}
        for rung in self.rungs:
            files[f"{rung.name}.csv"] = csv(self.table[self.table["rung"] == rung.name])
        files["weights.csv"] = csv(to_weight_frame(self.weights))
        files["report.md"] = as_markdown(self)
        files["report.json"] = as_json(self)
        files["junit.xml"] = as_junit(self)
        try:
            files["report.html"] = as_html(self)
        finally:  # a picture that cannot be drawn loses no figure
            write_all(Path(folder), files)
        return [Path(folder) / name for name in files]

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


def csv(table: "pd.DataFrame") -> str:
    """The table as CSV, with enough digits to read the same numbers back."""
    return table.to_csv(index=False, lineterminator="\n")
