"""Two reports row by row: what got worse, what got better, what is new, what vanished.

Two runs of the same code differ in rounding, on another processor or with another version of a
compiler: the small ladder with SSE4.2 instead of AVX2 has MAEs and relative errors up to 3 times as
large, and R up to 1.15 times. So an error counts as worse only if it is above what rounding makes
of correct code: below its floor any figure stands for the floor.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from parity.core.exceptions import InputError
from parity.core.globs import path_name
from parity.core.metrics import roundoff
from parity.core.verdicts import COMPILED, Row, Verdict
from parity.host.environment import flat
from parity.judge.verdict import GRADES
from parity.report.cells import cell
from parity.report.contents import Contents
from parity.report.table import SEVERITY, largest

R_FLOOR = 1.5
"""R up to this is noise: correct code is as far from float64 as PyTorch, and either may round
worse on another machine (see docs/thresholds.md)."""

RELATIVE_FLOOR = 32
"""Units of roundoff up to which a relative error is noise: 1.9e-6 in float32. A product of some
thousand terms comes to that, and rounds otherwise where it is added up in another order."""

MAE_FLOOR = GRADES[0][1]
"""An MAE below this has the best grade."""

OWN, WHOLE = ("R", "excl_rel_l2"), ("incl_mae", "mae")
"""The columns that are compared: of each, the first that both reports have. A container's local
error shows in the whole where it shows in child inputs, which the reports do not have by row."""

SAME = 1.1
"""Figures that differ by less than this factor are the same."""

ALIKE = (1.0, "")
"""Of rows of which nothing was measured."""

INPUTS = ("input", "weights", "config", "parameters")
"""The facts that say what was run."""

State = Literal["worse", "vanished", "new", "better"]
STATES: tuple[State, ...] = get_args(State)
Key = tuple[str, str, str, int, str]


@dataclass(frozen=True)
class Change:
    """A row that is not the same in both reports.

    `figure` is the column that changed most, `""` if none was measured. `times` says how many times
    as large it is, both raised to the floor; infinite if it is not measured any more, NaN for a row
    of one report.
    """

    state: State
    rung: str
    case: str
    path: str
    call: int
    leaf: str
    figure: str
    before: float
    after: float
    times: float
    verdict_before: Verdict | None
    verdict_after: Verdict | None

    @property
    def where(self) -> str:
        """The output, its call and its case."""
        leaf = f"#{self.leaf}" if self.leaf else ""
        return f"{path_name(self.path)}{leaf} call {self.call} of {self.case}"

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict before and then, one where they are the same or only one report has it."""
        both = dict.fromkeys((self.verdict_before, self.verdict_after))
        return tuple(verdict for verdict in both if verdict is not None)

    @property
    def lost(self) -> bool:
        """True of a row that vanished; there is one of the port as it is shipped if that fails."""
        return self.state == "vanished" and not self.case.endswith(COMPILED)

    @property
    def judged_worse(self) -> bool:
        """True if the verdict got worse, or a row that fails came up."""
        return _step(self.verdict_before, self.verdict_after) > 0


@dataclass(frozen=True)
class Diff:
    """Changes from one report to another, the worst first.

    `new_faults` are the faults of modules that had none of that cause before, a text for each.
    `other_inputs` and `other_environment` say in what else the two runs differ: with other inputs
    their errors cannot be compared, in another environment they may round otherwise.
    """

    names: tuple[str, str]
    verdicts: tuple[Verdict, Verdict]
    same: int
    changes: tuple[Change, ...]
    other_inputs: tuple[str, ...]
    other_environment: tuple[str, ...]
    new_faults: tuple[str, ...]

    def of(self, state: State) -> tuple[Change, ...]:
        """The changes in one state."""
        return tuple(change for change in self.changes if change.state == state)

    def failures(self, factor: float) -> tuple[Change, ...]:
        """Rows that a ratchet refuses: worse by more than `factor` or in verdict, vanished, or new
        and failing.
        """
        return tuple(
            change
            for change in self.changes
            if change.lost or change.times > factor or change.judged_worse
        )

    @property
    def counts(self) -> str:
        """How many rows are in each state, and the two verdicts."""
        counts = ", ".join(f"{len(self.of(state))} {state}" for state in STATES)
        before, after = self.verdicts
        return f"rows: {counts}, {self.same} the same; verdict {before}, then {after}"

    def ratchet(self, factor: float) -> str:
        """What a ratchet says of this, and why it fails."""
        if self.holds(factor):
            return f"ratchet {factor:g}x: holds"
        failures, why = self.failures(factor), "the verdict on the whole is worse"
        if failures:
            first = f"{path_name(failures[0].path)} of {failures[0].case}"
            why = f"{len(failures)} rows, the first {first}"
        return f"ratchet {factor:g}x: FAIL: {why}"

    def holds(self, factor: float) -> bool:
        """True if a ratchet lets this pass; the verdict on the whole must not be worse either."""
        return _step(*self.verdicts) <= 0 and not self.failures(factor)


def comparable(before: Contents, after: Contents) -> bool:
    """True if two reports have a row in common, or one has none.

    Raises:
        InputError: a report has two rows of one name.
    """
    return _in_common(_by_key(before), _by_key(after))


def _in_common(old: Mapping[Key, Row], new: Mapping[Key, Row]) -> bool:
    return not old or not new or bool(old.keys() & new.keys())


def diff(before: Contents, after: Contents) -> Diff:
    """Compare two reports by rung, case, path, call and leaf.

    Raises:
        InputError: a report has two rows of one name, or the two have none in common.
    """
    old, new = _by_key(before), _by_key(after)
    if not _in_common(old, new):
        raise InputError(
            f"the reports have no row in common: {_first(before, old)}; {_first(after, new)}. They "
            "are of different models or cases, or one has rungs; give two of one comparison"
        )
    found = [_change(key, old.get(key), new.get(key)) for key in {**old, **new}]
    changes = [change for change in found if change is not None]
    changes.sort(key=lambda x: (STATES.index(x.state), not x.judged_worse, -largest([x.times], 0)))
    return Diff(
        names=(before.name, after.name),
        verdicts=(before.verdict, after.verdict),
        same=found.count(None),
        changes=tuple(changes),
        other_inputs=tuple(_unlike(_run(before), _run(after))),
        other_environment=tuple(_unlike(_machine(before), _machine(after))),
        new_faults=_new_faults(before, after),
    )


def _new_faults(before: Contents, after: Contents) -> tuple[str, ...]:
    known = {(fault.path, fault.cause) for fault in before.faults}
    new = [fault for fault in after.faults if (fault.path, fault.cause) not in known]
    return tuple(f"{fault.cause or 'cause not known'} in {fault.where}" for fault in new)


def _first(report: Contents, rows: Mapping[Key, Row]) -> str:
    row = next(iter(rows.values()))
    return f"that of {report.name} begins with {path_name(row.path)} of {row.case}"


def _by_key(report: Contents) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    for row in report.rows:
        key = (row.rung, row.case, row.path, row.call, row.leaf)
        if key in found:
            raise InputError(f"{report.name}: two rows are named {key}; nothing tells them apart")
        found[key] = row
    return found


def _change(key: Key, old: Row | None, new: Row | None) -> Change | None:
    """Change of a row, of which one report may have none; `None` if it is the same."""
    verdicts = (old.verdict if old else None, new.verdict if new else None)
    some = old or new
    assert some is not None
    found = list(_ratios(old or some, new or some))
    state: State
    if old is None or new is None:
        state, times, figure = "vanished" if old else "new", math.nan, found[0][1] if found else ""
    else:
        (most, larger), (least, smaller) = max(found, default=ALIKE), min(found, default=ALIKE)
        if most > SAME or _step(*verdicts) > 0:
            state, times, figure = "worse", most, larger
        elif least < 1 / SAME or _step(*verdicts) < 0:
            state, times, figure = "better", least, smaller
        else:
            return None
    before, after = (cell(row, figure) if row and figure else math.nan for row in (old, new))
    return Change(state, *key, figure, before, after, times, *verdicts)


def _ratios(old: Row, new: Row) -> Iterator[tuple[float, str]]:
    """Ratios of the local error and of the whole one, each with its figure; infinite if it was
    measured and is not any more. With inputs of a large mean no MAE counts.
    """
    floors = {"R": R_FLOOR, "excl_rel_l2": RELATIVE_FLOOR * roundoff(old.dtype)}
    for names in (OWN, WHOLE) if old.limited else (OWN,):
        measured = [name for name in names if not math.isnan(cell(old, name))]
        for name in measured:
            if not math.isnan(cell(new, name)):
                floor = floors.get(name, MAE_FLOOR)
                yield _times(max(cell(old, name), floor), max(cell(new, name), floor)), name
                break
        else:
            if measured:
                yield math.inf, measured[0]


def _times(old: float, new: float) -> float:
    if old == new:
        return 1.0
    return math.inf if old == 0 else new / old


def _step(before: Verdict | None, after: Verdict | None) -> int:
    """How much worse a verdict is than before; of a row that is new, only that it fails counts."""
    return SEVERITY.index(after or "PASS") - SEVERITY.index(before or "UNKNOWN")


def _run(report: Contents) -> Mapping[str, Any]:
    facts = {name: report.facts.get(name) for name in INPUTS}
    return {"name": report.name, **facts, "seed": report.environment.get("seed")}


def _machine(report: Contents) -> Mapping[str, Any]:
    """Environment without what every run has of its own."""
    own = ("command", "commit", "seed")
    return {name: value for name, value in flat(report.environment) if name not in own}


def _unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)}, then {after.get(name)}"
