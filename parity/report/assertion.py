"""The assertion of a test on a report: its outcome, and the text of a failure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from parity.core.exceptions import InputError
from parity.core.globs import path_name
from parity.core.verdicts import Coverage, Fault, Row, Verdict
from parity.judge.verdict import GRADES, grade, graded_mae
from parity.report.contents import Contents
from parity.report.faults import fault_place, fault_reason
from parity.report.markdown import coverage_lines, number
from parity.report.sections import doubt_lines

LIMITS = dict(GRADES)

LISTED = 5
"""How many faults are described."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of the assertion on a report, in plain values.

    `verdict` is the report's, or FAIL where only the grade is missed. `worst_r` is the largest R
    that was measured, NaN if none was. `first_fault` is the path of the first module at fault and
    `cause` its cause, both `""` if none is. `brief` says in a few words what is wrong first, and
    `failure` all that a failing test says, `""` if the assertion holds.
    """

    verdict: Verdict
    worst_r: float
    first_fault: str
    cause: str
    brief: str
    failure: str


def check_grade(wanted: str | None) -> None:
    """Refuse what is no grade's name."""
    if wanted is not None and wanted not in LIMITS:
        raise InputError(f"grade {wanted!r}: expected one of {', '.join(LIMITS)}")


def assess(report: Contents, wanted: str | None = None) -> Outcome:
    """Outcome of a test on a report.

    Every gate must hold, as `report.holds` says: a WARN does not fail a test. With a grade
    `wanted`, every output of every call must have it or a better one. What counts is the MAE that
    the column `grade` is of: the inclusive one, to which the limit of a rung applies too, else the
    exclusive or the free-running one.

    Raises:
        InputError: `wanted` is no grade.
    """
    check_grade(wanted)
    missed = [row for row in report.rows if wanted is not None and _mae(row) >= LIMITS[wanted]]
    verdict: Verdict = "FAIL" if report.holds and missed else report.verdict
    brief = _brief(report, missed, wanted)
    lines: list[str] = []
    if missed or not report.holds:
        lines = [f"parity {verdict}: {brief}", *_details(report, missed, wanted)]
    fault = report.first_fault
    return Outcome(
        verdict=verdict,
        worst_r=_r(_worst(report)),
        first_fault=fault.name if fault else "",
        cause=fault.cause if fault else "",
        brief=brief,
        failure="\n".join(lines),
    )


def _mae(row: Row) -> float:
    """The error that is graded: infinite where it could not be measured, and NaN, which misses no
    grade, where there is nothing to measure.
    """
    return graded_mae((row.inclusive, row.exclusive, row.metrics)) if row.limited else math.nan


def _worst(report: Contents) -> Row | None:
    """The row with the largest R that was measured."""
    return max((row for row in report.rows if not math.isnan(_r(row))), key=_r, default=None)


def _r(row: Row | None) -> float:
    return row.exclusive.r if row is not None and row.exclusive is not None else math.nan


def _brief(report: Contents, missed: Sequence[Row], wanted: str | None) -> str:
    """The first thing wrong: a fault, else what keeps the report from passing, else the grade."""
    fault = report.first_fault
    if fault is not None:
        return f"`{fault.name}`: {fault.cause or fault.evidence}"
    if not report.coverage.complete or not report.rows:
        return _brief_coverage(report.coverage)
    if report.holds and missed:
        return f"{_output(missed[0])}: grade {grade(_mae(missed[0]))}, not {wanted}"
    reasons = (
        f"{_output(row)}: {row.reason}"
        for row in report.rows
        if row.verdict == report.verdict and row.reason and not row.one_sided
    )
    return next(chain(reasons, report.notes), "")


def _brief_coverage(coverage: Coverage) -> str:
    lacking = [*coverage.unmatched, *coverage.unmatched_calls, *coverage.unmatched_tensors]
    if not lacking:
        return "nothing was compared"
    more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"no counterpart: {lacking[0]}{more}"


def _output(row: Row) -> str:
    return f"`{path_name(row.path)}{f'#{row.leaf}' if row.leaf else ''}`"


def _details(report: Contents, missed: Sequence[Row], wanted: str | None) -> Iterator[str]:
    for fault in report.faults[:LISTED]:
        yield from _of_fault(fault)
    if len(report.faults) > LISTED:
        yield f"and {len(report.faults) - LISTED} more modules at fault"
    if missed and wanted:
        row = missed[0]
        yield (
            f"{_output(row)}, call {row.call} of {row.case}, is the first of {len(missed)} outputs "
            f"that are not {wanted}, MAE below {LIMITS[wanted]:g}: {_mae(row):.1e}"
        )
    if not report.coverage.complete:
        yield from (line.replace("**", "") for line in coverage_lines(report))
    yield from doubt_lines(report.doubts)
    yield from (f"note: {note}" for note in report.notes)
    worst = _worst(report)
    if worst is not None:
        yield f"worst R {number(_r(worst))}, of {_output(worst)}, call {worst.call}"


def _of_fault(fault: Fault) -> Iterator[str]:
    yield f"fault: {fault_place(fault)}: {fault_reason(fault)}"
    if fault.hint:
        yield f"hint: {fault.hint}"
