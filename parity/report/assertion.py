"""Assertion of a test on a report, and what it says where it fails."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parity.core.exceptions import InputError, escaped
from parity.core.globs import path_name
from parity.core.verdicts import Row, Verdict
from parity.judge.verdict import GRADES, grade, graded_mae
from parity.report.contents import Contents
from parity.report.terminal import as_text

LIMITS = dict(GRADES)


@dataclass(frozen=True)
class Assertion:
    """Result of an assertion, in plain values.

    `verdict` is the report's, or FAIL where only the grade is missed. `brief` says in a few words
    what is wrong first, and `failure` all that a failing test says, `""` if it passes.
    """

    verdict: Verdict
    brief: str
    failure: str


def check_grade(wanted: str | None) -> None:
    """Refuse what is no grade's name."""
    if wanted is not None and wanted not in LIMITS:
        raise InputError(f"grade {wanted!r}: expected one of {', '.join(LIMITS)}")


def assess(report: Contents, wanted: str | None = None) -> Assertion:
    """Assert that a report holds.

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
    if report.holds and not missed:
        return Assertion(verdict, brief, "")
    headline = report.headline if verdict == report.verdict else verdict
    lines = [f"parity {headline}: {brief.removeprefix(f'{headline}: ')}"]
    if missed and wanted:
        row = missed[0]
        lines.append(
            f"{_output(row)}, call {row.call} of {row.case}, is the first of {len(missed)} outputs "
            f"that are not {wanted}, MAE below {LIMITS[wanted]:g}: {_mae(row):.1e}"
        )
    return Assertion(verdict, brief, "\n".join([*map(escaped, lines), as_text(report)]))


def _mae(row: Row) -> float:
    """The error that is graded: infinite where it could not be measured, and NaN, which misses no
    grade, where there is nothing to measure.
    """
    return graded_mae((row.inclusive, row.exclusive, row.metrics)) if row.limited else math.nan


def _brief(report: Contents, missed: Sequence[Row], wanted: str | None) -> str:
    """Return what is wrong first: a fault, the grade, what is missing, else the worst row."""
    if fault := report.first_fault:
        return f"`{fault.name}`: {fault.cause or fault.magnitude}"
    if report.holds and missed:
        return f"{_output(missed[0])}: grade {grade(_mae(missed[0]))}, not {wanted}"
    if not report.coverage.complete:
        return report.missing or "nothing was compared"
    worst = (x for x in report.rows if x.verdict == report.verdict and x.reason)
    found = (f"{_output(row)}: {row.reason}" for row in worst if not row.one_sided)
    return next(found, next(iter(report.notes), ""))


def _output(row: Row) -> str:
    return f"`{path_name(row.path)}{f'#{row.leaf}' if row.leaf else ''}`"
