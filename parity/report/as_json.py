"""A report as JSON, in the form of `schema.json`."""

import json
import math
from dataclasses import asdict
from typing import Any

from parity.report.report import Report
from parity.report.table import COLUMNS, by_kind, record, summarise

FORMAT = 1
"""Raised when a reader of the older form would misread the new one."""


def as_json(report: Report) -> str:
    """One JSON document; NaN is null, infinities are the strings "inf" and "-inf"."""
    coverage = report.coverage
    document = {
        "format": FORMAT,
        "name": report.name,
        "verdict": report.verdict,
        "facts": dict(report.facts),
        "environment": dict(report.environment),
        "faults": [asdict(fault) for fault in report.faults],
        "notes": list(report.notes),
        "unexercised": list(report.unexercised),
        "emulations": [asdict(emulation) for emulation in report.emulations],
        "nonfinite": [vars(one) for one in report.nonfinite],
        "coverage": {**vars(coverage), "complete": coverage.complete},
        "weights": [vars(line) for line in report.weights],
        "rungs": [vars(line) for line in summarise(report.rows, report.rungs)],
        "kinds": [vars(line) for line in by_kind(report.rows)],
        "columns": list(COLUMNS),
        "rows": [list(record(row).values()) for row in report.rows],
        "reasons": [row.reason for row in report.rows],
    }
    return json.dumps(_plain(document), allow_nan=False, ensure_ascii=False, indent=1) + "\n"


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
