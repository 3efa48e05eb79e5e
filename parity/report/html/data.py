"""Data of the page for its script: rows, calls of the chart, error maps."""

import math
from collections.abc import Sequence
from typing import Any

from parity.core.codec import plain
from parity.core.error_map import EDGES
from parity.core.metrics import roundoff
from parity.core.verdicts import Row
from parity.report.cells import COLUMNS, record
from parity.report.contents import Contents
from parity.report.table import largest

SHOWN = (
    *("path", "kind", "call", "leaf", "case", "rel_l2", "incl_rel_l2", "excl_rel_l2"),
    *("child_inputs", "R", "incl_mae", "grade", "verdict"),
)
"""The columns of the page's table; the others show for a row that is opened. `child_inputs` is
there only if those of some call are wrong."""

TEXT = frozenset(
    {"rung", "case", "path", "nnx_path", "kind", "leaf", "shape", "dtype"}
    | {"grade", "verdict", "worst_index"}
)
"""The columns that hold no numbers."""


def page_data(report: Contents) -> dict[str, Any]:
    """Columns and rows of the table, calls and faults of the chart, error maps by fault."""
    wrong = any(row.child_inputs for row in report.rows)
    calls: dict[tuple[str, str, int], tuple[int, list[Row]]] = {}
    for at, row in enumerate(report.rows):
        calls.setdefault((row.case, row.path, row.call), (at, []))[1].append(row)
    places = {call: at for at, call in enumerate(calls)}
    document = {
        "columns": [*COLUMNS, "child_inputs", "reason"],
        "numeric": [*(name for name in COLUMNS if name not in TEXT), "child_inputs"],
        "shown": [name for name in SHOWN if wrong or name != "child_inputs"],
        "rows": [
            [*record(row).values(), row.child_inputs or math.nan, row.reason]
            for row in report.rows
        ],
        "calls": [[first, *_errors(rows)] for first, rows in calls.values()],
        "measured": sum(
            any(row.exclusive and row.exclusive.floor_rel_l2 >= 0 for row in rows)
            for _, rows in calls.values()
        ),
        "faults": [places.get((x.case, x.path, x.call)) for x in report.faults],
        "maps": {number: fault.error_map for number, fault in enumerate(report.faults, 1)},
        "edges": EDGES,
    }
    found: dict[str, Any] = _brief(plain(document))
    return found


def _errors(rows: Sequence[Row]) -> tuple[float, ...]:
    """The worst relative L2 error of a call's outputs of each sort, NaN if not measured.

    Free-running, inclusive, local (see `Row.own`), and what R is measured in: the distance of the
    reference from float64, at least four roundings.
    """
    floors = [row.exclusive.floor_rel_l2 for row in rows if row.exclusive]
    return (
        largest(row.metrics.rel_l2 for row in rows if row.metrics),
        largest(row.inclusive.rel_l2 for row in rows if row.inclusive),
        largest(row.own for row in rows),
        largest([*floors, *(4 * roundoff(row.dtype) or math.nan for row in rows)]),
    )


def _brief(value: Any) -> Any:
    """The value with four digits of each number."""
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_brief, value))
    return float(f"{value:.4g}") if isinstance(value, float) else value
