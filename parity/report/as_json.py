"""A report as JSON, in the form of `schema.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.core.codec import plain
from parity.core.measurements import Emulation, NonFinite
from parity.core.pair import Rung
from parity.core.tensors import Weight
from parity.core.verdicts import Fault, Verdict
from parity.report.cells import EVERY, cells
from parity.report.contents import Contents
from parity.report.table import by_kind, summarise

FORMAT = 1
"""Raised when a reader of the older form would misread the new one."""


@dataclass(frozen=True)
class Document:
    """All of a report's file. `Any` is what follows from the rest, or what a caller wrote."""

    format: int
    name: str
    verdict: Verdict
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    faults: tuple[Fault, ...]
    notes: Any
    partial: str
    inputs: tuple[str, ...]
    unexercised: tuple[str, ...]
    emulations: tuple[Emulation, ...]
    nonfinite: tuple[NonFinite, ...]
    coverage: Mapping[str, Any]
    weights: tuple[Weight, ...]
    ladder: tuple[Rung, ...]
    rungs: Any
    kinds: Any
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    reasons: tuple[str, ...]


SAME = (
    *("name", "faults", "environment", "facts", "inputs", "weights", "unexercised"),
    *("emulations", "nonfinite", "partial"),
)
"""The parts of a document that a report has under the same name."""


def as_json(report: Contents) -> str:
    """One JSON document; NaN is null, infinities are the strings "inf" and "-inf".

    Every entry of a list or an object has a line, without spaces: two reports differ line by line,
    and rows are many.
    """
    coverage = {name: value for name, value in vars(report.coverage).items() if name != "idle"}
    document = Document(
        **{name: getattr(report, name) for name in SAME},
        format=FORMAT,
        verdict=report.verdict,
        notes=report.notes,
        coverage={**coverage, "complete": report.coverage.complete},
        ladder=report.rungs,
        rungs=summarise(report.rows, report.rungs),
        kinds=by_kind(report.rows),
        columns=EVERY,
        rows=tuple(tuple(cells(row, EVERY).values()) for row in report.rows),
        reasons=tuple(row.reason for row in report.rows),
    )
    parts = [f" {dumps(key)}: {_lines(value)}" for key, value in plain(document).items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and value:
        entries = [f"  {dumps(key)}: {dumps(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(entries) + "\n }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {dumps(item)}" for item in value) + "\n ]"
    return dumps(value)


def dumps(value: Any, indent: int | None = None) -> str:
    """As JSON in ASCII, floats that it does not have as `as_json` says."""
    between = (",", ": " if indent else ":")
    return json.dumps(plain(value), allow_nan=False, indent=indent, separators=between)
