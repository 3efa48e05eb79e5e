"""The modules of a report as a tree, with what each one's own code adds to the error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.core.verdicts import Row, Verdict
from parity.report.contents import Contents
from parity.report.table import largest, worst_verdict

DECADES = 8
"""Powers of ten up to 1 that colours tell apart."""


@dataclass(frozen=True)
class Module:
    """A module, by path: its calls, its worst errors, and the modules inside it.

    `own` is the worst relative L2 error of its own code (see `Row.own`), `whole` the worst
    inclusive one, NaN if not measured. `added` is the sum of the own errors of its calls and of
    those of all inside it, each call at most 1. `verdict` is the worst of its own rows, `""` if it
    has none. `fault` is the number of its fault, 0 if it has none, `faults` how many are inside it.
    `heat` is its colour (see `heat`).
    """

    path: str
    kind: str
    calls: int
    own: float
    whole: float
    r: float
    added: float
    verdict: Verdict | str
    fault: int
    faults: int
    heat: int
    inside: tuple["Module", ...]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2] or "<root>"

    @property
    def total(self) -> int:
        """Calls of this module and of those inside it."""
        return self.calls + sum(module.total for module in self.inside)


def module_tree(report: Contents) -> Module:
    """The root, with everything that has a row or lacks a counterpart."""
    rows: dict[str, list[Row]] = {}
    for row in report.rows:
        rows.setdefault(row.path, []).append(row)
    children: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path in (*rows, *report.coverage.unmatched):
        below = path
        while below and below not in seen:
            seen.add(below)
            above = below.rpartition(".")[0]
            children.setdefault(above, []).append(below)
            below = above
    faults = {fault.path: number for number, fault in enumerate(report.faults, 1)}
    return _module("", rows, children, faults, frozenset(report.coverage.unmatched))


def _module(
    path: str,
    rows: Mapping[str, Sequence[Row]],
    children: Mapping[str, Sequence[str]],
    faults: Mapping[str, int],
    unmatched: frozenset[str],
) -> Module:
    own_rows = rows.get(path, ())
    inside = tuple(
        _module(child, rows, children, faults, unmatched) for child in children.get(path, ())
    )
    by_call: dict[tuple[str, int], list[float]] = {}
    for row in own_rows:
        errors = by_call.setdefault((row.case, row.call), [])
        errors.append(row.own)
    errors = [largest(found) for found in by_call.values()]
    added = sum(min(error, 1.0) for error in errors if not math.isnan(error))
    own = largest(errors)
    verdict: Verdict | str = "FAIL" if path in unmatched else ""
    return Module(
        path=path,
        kind=own_rows[0].kind if own_rows else "",
        calls=len(by_call),
        own=own,
        whole=largest(row.inclusive.rel_l2 for row in own_rows if row.inclusive),
        r=largest(row.exclusive.r for row in own_rows if row.exclusive),
        added=added + sum(module.added for module in inside),
        verdict=worst_verdict([row.verdict for row in own_rows]) if own_rows else verdict,
        fault=faults.get(path, 0),
        faults=sum(module.faults + bool(module.fault) for module in inside),
        heat=heat(own),
        inside=inside,
    )


def heat(error: float) -> int:
    """0 for what is below 1e-8 or was not measured, one more for each power of ten, 8 from 0.1."""
    if math.isnan(error) or error <= 0:
        return 0
    return round(min(max(math.floor(math.log10(min(error, 1.0))) + DECADES + 1, 0), DECADES))
