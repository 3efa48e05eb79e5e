"""Rows and calls as plain values, which the page's script gets."""

import math
from typing import Any

from parity.report.cells import COLUMNS, record
from parity.report.contents import Contents
from parity.report.html.drift import Drift

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


def page_data(report: Contents, drift: Drift) -> dict[str, Any]:
    """Columns, rows with their child inputs and why they have their verdict, calls of the chart."""
    wrong = any(row.child_inputs for row in report.rows)
    return {
        "columns": [*COLUMNS, "child_inputs", "reason"],
        "numeric": [*(name for name in COLUMNS if name not in TEXT), "child_inputs"],
        "shown": [name for name in SHOWN if wrong or name != "child_inputs"],
        "rows": [
            [*map(_plain, (*record(row).values(), row.child_inputs or math.nan)), row.reason]
            for row in report.rows
        ],
        "calls": [
            [point.row, *map(_plain, (point.free, point.inclusive, point.exclusive, point.floor))]
            for point in drift.points
        ],
    }


def _plain(value: Any) -> Any:
    """Four digits, and words for what JSON has no number for."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else ("inf" if value > 0 else "-inf")
