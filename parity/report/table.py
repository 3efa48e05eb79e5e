"""Rows as a pandas table and as CSV, summaries of a ladder and by class, the worst of several."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from csv import DictWriter
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from parity.core.exceptions import InputError, escaped, not_installed
from parity.core.globs import path_name
from parity.core.limits import r_limit
from parity.core.pair import Rung
from parity.core.verdicts import Row, Verdict, of_gradient
from parity.judge.verdict import grade
from parity.report.cells import COLUMNS, cell, cells

if TYPE_CHECKING:
    import pandas as pd

K = TypeVar("K")
T = TypeVar("T")

SEVERITY: tuple[Verdict, ...] = ("PASS", "WARN", "UNKNOWN", "FAIL")
"""Verdicts, the worst last."""

COLOURS = {"PASS": "green", "WARN": "yellow", "UNKNOWN": "yellow", "FAIL": "red"}
"""Their colours on a terminal."""


LISTED = 20
"""How many of many lines a report lists."""


def cut(lines: Sequence[str], more: str) -> Sequence[str]:
    """The first lines; where there are others, `more` with their number after them."""
    return lines if len(lines) <= LISTED else [*lines[:LISTED], more.format(len(lines) - LISTED)]


class Worst(NamedTuple):
    """The largest errors of some rows, NaN if not measured: relative L2 errors, free-running,
    with all that is inside, and local (see `Row.own`), then R.
    """

    free: float
    whole: float
    own: float
    r: float


def worst(rows: Sequence[Row]) -> Worst:
    """The largest errors of these rows."""
    return Worst(
        largest(row.metrics.rel_l2 for row in rows if row.metrics),
        largest(row.inclusive.rel_l2 for row in rows if row.inclusive),
        largest(row.own for row in rows),
        largest(row.r for row in rows),
    )


def grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Rows, or faults, that have the same key, by it, in their order."""
    found: dict[K, list[T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def unnumbered(text: str) -> str:
    """The text without its figures."""
    return re.sub(r"[0-9][0-9.e+-]*", "", text)


def to_frame(rows: Sequence[Row]) -> "pd.DataFrame":
    """One line per row, columns as in `COLUMNS`; what was not measured is NaN."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise InputError(not_installed(error)) from error

    return pd.DataFrame([cells(row) for row in rows], columns=list(COLUMNS))


@dataclass(frozen=True)
class RungSummary:
    """The worst of a rung; errors cover the rows that its limit applies to."""

    rung: str
    rows: int
    limit: float
    incl_mae: float
    worst: str
    free_mae: float
    rel_l2: float
    r: float
    grade: str
    verdict: Verdict


def summarise(rows: Sequence[Row], rungs: Sequence[Rung]) -> tuple[RungSummary, ...]:
    """One line per rung that has rows."""
    by_rung = grouped(rows, lambda row: row.rung)
    return tuple(_summary(rung, by_rung[rung.name]) for rung in rungs if rung.name in by_rung)


def _summary(rung: Rung, rows: Sequence[Row]) -> RungSummary:
    limited = [row for row in rows if row.limited]
    worst = max(limited, key=lambda row: _largest([row], "incl_mae"), default=None)
    error = _largest(limited, "incl_mae")
    return RungSummary(
        rung=rung.name,
        limit=rung.limit,
        rows=len(rows),
        incl_mae=error,
        worst=f"{worst.case} {path_name(worst.path)}" if worst is not None else "",
        free_mae=_largest(limited, "mae"),
        rel_l2=_largest(limited, "incl_rel_l2"),
        r=largest(row.r for row in rows),
        grade=grade(error),
        verdict=worst_verdict([row.verdict for row in rows]),
    )


@dataclass(frozen=True)
class KindSummary:
    """R of the calls of one class of modules, or of their gradients.

    `measured` counts the output leaves whose R was measured, `bounded` those whose relative error
    alone shows that R is harmless. `median`, `p95` and `largest` are of the measured ones, NaN if
    there are none. `warn` and `fail` are the limits by kind.
    """

    kind: str
    calls: int
    measured: int
    bounded: int
    median: float
    p95: float
    largest: float
    warn: float
    fail: float


def by_kind(rows: Sequence[Row]) -> tuple[KindSummary, ...]:
    """The distribution of R by class of module, in the order of the rows."""
    measured = (row for row in rows if row.exclusive is not None)
    kinds = grouped(
        measured,
        lambda row: f"{row.kind}, gradients" if of_gradient(row.case, row.leaf) else row.kind,
    )
    return tuple(_kind(kind, found) for kind, found in kinds.items())


def _kind(kind: str, rows: Sequence[Row]) -> KindSummary:
    errors = [row.exclusive for row in rows if row.exclusive is not None]
    measured = [row.r for row in rows if not math.isnan(row.r)]
    parts = np.quantile(measured or [math.nan], (0.5, 0.95, 1), method="inverted_cdf")
    limit = r_limit(rows[0].kind)
    return KindSummary(
        kind=kind,
        calls=len({(row.case, row.path, row.call) for row in rows}),
        measured=len(measured),
        bounded=sum(error.bounded for error in errors),
        median=float(parts[0]),
        p95=float(parts[1]),
        largest=float(parts[2]),
        warn=limit.warn,
        fail=limit.fail,
    )


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The most severe of several."""
    return max(verdicts, key=SEVERITY.index, default="UNKNOWN")


def largest(values: Iterable[float], default: float = math.nan) -> float:
    """The largest of the values that were measured, `default` if none was."""
    return max((value for value in values if not math.isnan(value)), default=default)


def _largest(rows: Sequence[Row], column: str) -> float:
    return largest((float(cell(row, column)) for row in rows), -math.inf)


def csv(lines: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """The lines as CSV, with enough digits to read the same numbers back; NaN is empty.

    A text that a spreadsheet would compute has a quotation mark before it.
    """
    text = StringIO()
    writer = DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _inert(line[name]) for name in columns if line[name] == line[name]})
    return text.getvalue()


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return f"'{escaped(value)}" if value.startswith(("=", "+", "-", "@")) else escaped(value)


def rows_csv(rows: Iterable[Row]) -> str:
    """Rows as CSV, in the columns of the table."""
    return csv(map(cells, rows), COLUMNS)
