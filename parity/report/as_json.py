"""A report as JSON, in the form of `schema.json`."""

import json
import math
from dataclasses import asdict
from typing import Any

from parity.report.cells import DETAILS, cells
from parity.report.report import Report
from parity.report.table import COLUMNS as TABLE
from parity.report.table import by_kind, summarise

FORMAT = 1
"""Raised when a reader of the older form would misread the new one."""

COLUMNS = (*TABLE, *DETAILS)
"""The columns of the rows: those of the table, then what it takes to read the report back."""


def as_json(report: Report) -> str:
    """One JSON document; NaN is null, infinities are the strings "inf" and "-inf".

    Every entry of a list or an object has a line, without spaces: two reports differ line by line,
    and rows are many.
    """
    coverage = report.coverage
    document = {
        "format": FORMAT,
        "name": report.name,
        "verdict": report.verdict,
        "facts": dict(report.facts),
        "environment": dict(report.environment),
        "faults": [asdict(fault) for fault in report.faults],
        "notes": list(report.notes),
        "partial": report.partial,
        "inputs": list(report.inputs),
        "unexercised": list(report.unexercised),
        "emulations": [asdict(emulation) for emulation in report.emulations],
        "nonfinite": [vars(one) for one in report.nonfinite],
        "coverage": {
            **{name: value for name, value in vars(coverage).items() if name != "idle"},
            "complete": coverage.complete,
        },
        "weights": [vars(line) for line in report.weights],
        "ladder": [vars(rung) for rung in report.rungs],
        "rungs": [vars(line) for line in summarise(report.rows, report.rungs)],
        "kinds": [vars(line) for line in by_kind(report.rows)],
        "columns": list(COLUMNS),
        "rows": [list(cells(row).values()) for row in report.rows],
        "reasons": [row.reason for row in report.rows],
    }
    parts = [f" {dumps(key)}: {_lines(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and value:
        entries = [f"  {dumps(str(key))}: {dumps(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(entries) + "\n }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {dumps(item)}" for item in value) + "\n ]"
    return dumps(value)


def dumps(value: Any, indent: int | None = None) -> str:
    """As JSON, floats that it does not have as `as_json` says."""
    between = (",", ": " if indent else ":")
    return json.dumps(
        _plain(value),
        allow_nan=False,
        ensure_ascii=False,
        indent=indent,
        separators=between,
        default=str,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
