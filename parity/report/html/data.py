"""Data of the page for its script: rows, calls of the chart, error maps."""

import math
from collections.abc import Sequence
from typing import Any

from parity.core.codec import plain
from parity.core.error_map import EDGES
from parity.core.exceptions import escaped
from parity.core.metrics import roundoff
from parity.core.verdicts import Row
from parity.report.cells import COLUMNS, NUMERIC, cells
from parity.report.contents import Contents
from parity.report.faults import grouped_faults
from parity.report.table import grouped, largest, worst

SHOWN = (
    *("path", "kind", "call", "leaf", "case", "rel_l2", "incl_rel_l2", "excl_rel_l2"),
    *("child_inputs", "R", "child_r", "incl_mae", "grade", "verdict"),
)
"""The columns of the page's table; the others show for a row that is opened. Those of child
inputs are there only if those of some call are wrong."""

CHILD = ("child_inputs", "child_r")


def page_data(report: Contents) -> dict[str, Any]:
    """Columns and rows of the table, calls of the chart, error maps.

    A fault has the number of its group, and the place of its call in the chart.
    """
    wrong = any(row.child_inputs for row in report.rows)
    calls = grouped(report.rows, _call)
    places = {call: at for at, call in enumerate(calls)}
    groups = [*enumerate(grouped_faults(report.faults), 1)]
    first = {_call(row): at for at, row in reversed([*enumerate(report.rows)])}
    document = {
        "columns": [*COLUMNS, "reason"],
        "numeric": NUMERIC,
        "shown": [name for name in SHOWN if wrong or name not in CHILD],
        "rows": [[*cells(row).values(), row.reason] for row in report.rows],
        "calls": [[first[call], *_errors(rows)] for call, rows in calls.items()],
        "measured": sum(
            any(row.exclusive and row.exclusive.floor_rel_l2 >= 0 for row in rows)
            for rows in calls.values()
        ),
        "faults": [
            (number, places[x.case, x.path, x.call])
            for number, group in groups
            for x in group
            if (x.case, x.path, x.call) in places
        ],
        "maps": {
            number: {"along": first.error_map.along, "counts": first.error_map.counts}
            for number, (first, *_) in groups
            if first.error_map
        },
        "edges": EDGES,
    }
    found: dict[str, Any] = _brief(plain(document))
    return found


def _call(row: Row) -> tuple[str, str, int]:
    return row.case, row.path, row.call


def _errors(rows: Sequence[Row]) -> tuple[float, ...]:
    """The worst of a call: its free-running, inclusive and local error, and what R is measured in,
    the distance of the reference from float64, at least four roundings.
    """
    floors = [row.exclusive.floor_rel_l2 for row in rows if row.exclusive]
    floor = largest([*floors, *(4 * roundoff(row.dtype) or math.nan for row in rows)])
    return (*worst(rows)[:3], floor)


def _brief(value: Any) -> Any:
    """The value with four digits of each number, and texts that can be read."""
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_brief, value))
    if isinstance(value, str):
        return escaped(value)
    return float(f"{value:.4g}") if isinstance(value, float) else value
