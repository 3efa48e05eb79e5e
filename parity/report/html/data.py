"""Rows and calls as plain values, which the page's script gets."""

import math
from typing import Any

from parity.report.cells import COLUMNS, record
from parity.report.contents import Contents
from parity.report.html.drift import Drift

SHOWN = (
    *("path", "kind", "call", "leaf", "case", "rel_l2", "incl_rel_l2", "excl_rel_l2", "handed"),
    *("R", "incl_mae", "grade", "verdict"),
)
"""The columns of the page's table; the others show for a row that is opened. `handed` is there only
if the child inputs of some call are wrong."""

TEXT = frozenset(
    {"rung", "case", "path", "nnx_path", "kind", "leaf", "shape", "dtype"}
    | {"grade", "verdict", "worst_index"}
)
"""The columns that hold no numbers."""


def page_data(report: Contents, drift: Drift) -> dict[str, Any]:
    """Columns, rows with their child inputs and why they have their verdict, calls of the chart."""
    handed = any(row.handed for row in report.rows)
    return {
        "columns": [*COLUMNS, "handed", "reason"],
        "numeric": [*(name for name in COLUMNS if name not in TEXT), "handed"],
        "shown": [name for name in SHOWN if handed or name != "handed"],
        "rows": [
            [*map(_plain, (*record(row).values(), row.handed or math.nan)), row.reason]
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
