"""Contents of a report: all that a comparison found, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from parity.core.exceptions import escaped
from parity.core.globs import path_name
from parity.core.measurements import Emulation, NonFinite
from parity.core.pair import Rung
from parity.core.problems import Side
from parity.core.tensors import Weight
from parity.core.verdicts import IDLE, Coverage, Fault, Row, Verdict
from parity.report.table import to_frame, worst_verdict
from parity.report.weights import weight_notes

if TYPE_CHECKING:
    import pandas as pd

    from parity.core.repro import Repro


@dataclass(frozen=True, repr=False)
class Contents:
    """All that a comparison found.

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
    """Sentences on what is weak about the inputs and the weights."""
    weights: tuple[Weight, ...] = ()
    """Every tensor of the reference and the port's leaf that holds it, then the leaves too many."""
    unexercised: tuple[str, ...] = ()
    """Sentences on what the inputs left out; they take nothing from what was found."""
    outputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Outputs of the reference in the last case, by leaf: NumPy arrays, channel-first."""
    emulations: tuple[Emulation, ...] = ()
    """By case, what emulated hardware would add to the port's error."""
    nonfinite: tuple[NonFinite, ...] = ()
    """By case and side, where the finite numbers are left, if they are."""
    partial: str = ""
    """A note of what was left out on purpose, so that this is no report on the whole port."""
    repro: "Repro | None" = field(default=None, repr=False)
    """The call of the first fault, if it was to be kept."""

    def __bool__(self) -> bool:
        """True of a PASS only."""
        return self.verdict == "PASS"

    @property
    def holds(self) -> bool:
        """True of a PASS and of a WARN: nothing failed, and nothing is unknown.

        Then commands exit with 0, and `assert_parity` does not fail.
        """
        return self.verdict in ("PASS", "WARN")

    def __repr__(self) -> str:
        found = f"{len(self.rows)} rows, {len(self.faults)} faults"
        return f"<{type(self).__name__} {escaped(self.name)}: {self.verdict}, {found}>"

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
    def headline(self) -> str:
        """The verdict; where nothing that was compared is wrong, that the mapping is incomplete."""
        lacking = self.verdict == "FAIL" and not self.faults and self.missing
        wrong = any(row.verdict == "FAIL" for row in self.rows)
        return "mapping incomplete" if lacking and not wrong else self.verdict

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader should know before trusting a PASS."""
        idle = self.coverage.idle
        were = "1 module was" if len(idle) == 1 else f"{len(idle)} modules were"
        ran = (f"{were} {IDLE}: {', '.join(idle[:5])}",) if idle else ()
        lacking = (self._lacking("reference"), self._lacking("port"))
        loose = weight_notes(self.weights, self.coverage, self.faults)
        nothing = "" if self._compared else "no output has an entry: nothing was compared"
        first = (nothing, self.partial, self.missing)
        return (*filter(None, first), *ran, *filter(None, lacking), *loose, *self.inputs)

    @property
    def _compared(self) -> bool:
        """True if there was a value to compare: that of an empty batch is equal to anything."""
        return any(0 not in row.shape for row in self.rows)

    @property
    def missing(self) -> str:
        """Sentence on what has no counterpart, `""` if all has."""
        found = {
            "modules": self.coverage.unmatched,
            "calls": self.coverage.unmatched_calls,
            "tensors": self.coverage.unmatched_tensors,
        }
        counts = [
            f"{len(texts)} {what if len(texts) > 1 else what[:-1]} ({texts[0]})"
            for what, texts in found.items()
            if texts
        ]
        hint = f"; if they need none: {self.coverage.proposal}" if self.coverage.proposal else ""
        return (
            f"mapping incomplete: without a counterpart are {', '.join(counts)}{hint}"
            if counts
            else ""
        )

    def _lacking(self, side: Side) -> str:
        found = [row for row in self.rows if row.one_sided == side]
        if not found:
            return ""
        names = [f"{path_name(row.path)}#{row.leaf}" for row in found[:5]]
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
