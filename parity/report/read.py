"""A report read back from its JSON: only what `as_json` writes is taken."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError, first_line
from parity.core.measurements import Emulation, NonFinite
from parity.core.pair import Rung
from parity.core.tensors import Weight
from parity.core.verdicts import IDLE, Coverage, Fault, Verdict
from parity.report.as_json import COLUMNS, FORMAT
from parity.report.cells import to_row
from parity.report.report import Report
from parity.report.typed import typed

LARGEST = 1 << 28
"""Bytes of a report: it is read as a whole, and 100,000 rows take less than half of this."""

AGAIN = "make the report again"


@dataclass(frozen=True)
class _Document:
    """The document. `Any` is what follows from the rest, or what a caller wrote."""

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


def read_report(path: str | Path) -> Report:
    """The report in the file `path`, or in `report.json` of the folder `path`.

    It has everything but `outputs` and `repro`, the arrays, which no file holds.

    Raises:
        InputError: no such file, too large, no JSON, cut short, of another format or version, or
            not what a report writes.
    """
    file = _find(Path(path))
    document = typed(_load(file), _Document, str(file))
    if document.columns != COLUMNS:
        raise InputError(f"{file}: its columns are not those of this version; {AGAIN}")
    if len(document.reasons) != len(document.rows):
        counts = f"{len(document.reasons)} reasons for {len(document.rows)} rows"
        raise InputError(f"{file}: {counts}; {AGAIN}")
    rows = []
    for number, row in enumerate(document.rows):
        where = f"{file}.rows[{number}]"
        if len(row) != len(COLUMNS):
            raise InputError(f"{where}: {len(row)} values for {len(COLUMNS)} columns; {AGAIN}")
        values = dict(zip(COLUMNS, row, strict=True))
        rows.append(to_row(values, document.reasons[number], where))
    coverage = {name: value for name, value in document.coverage.items() if name != "complete"}
    # a file has the reason alone
    coverage["idle"] = [path for path, why in _pairs(coverage.get("declared")) if why == IDLE]
    report = Report(
        name=document.name,
        rows=tuple(rows),
        faults=document.faults,
        coverage=typed(coverage, Coverage, f"{file}.coverage"),
        environment=document.environment,
        facts=document.facts,
        rungs=document.ladder,
        inputs=document.inputs,
        weights=document.weights,
        unexercised=document.unexercised,
        emulations=document.emulations,
        nonfinite=document.nonfinite,
        partial=document.partial,
    )
    if document.coverage.get("complete") != report.coverage.complete:
        raise InputError(f"{file}.coverage: its counts are not those it sums up: {AGAIN}")
    if report.verdict != document.verdict:
        raise InputError(
            f"{file}: says {document.verdict}, and what it holds makes {report.verdict}: was it "
            f"edited? {AGAIN}"
        )
    return report


def _pairs(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _find(path: Path) -> Path:
    try:
        return path / "report.json" if path.is_dir() else path
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _load(file: Path) -> Mapping[str, Any]:
    """The object in a file, if it is a report of this format."""
    try:
        if not file.is_file():
            missing = "not a file" if file.exists() else "no such file"
            raise InputError(f"{file}: {missing}; give a report.json, or the folder that holds it")
        size = file.stat().st_size
        if size > LARGEST:
            raise InputError(f"{file}: {size} bytes; a report has at most {LARGEST}")
        document = json.loads(file.read_text("utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        raise InputError(f"{file}: no JSON, or cut short ({reason}); {AGAIN}") from error
    number = document.get("format") if isinstance(document, dict) else None
    if type(number) is not int or not isinstance(document, dict):
        raise InputError(f"{file}: no parity report, which begins with its format")
    if number > FORMAT:
        raise InputError(f"{file}: format {number} is of a newer parity, this one reads {FORMAT}")
    if number != FORMAT:
        raise InputError(f"{file}: format {number}, expected {FORMAT}; {AGAIN}")
    return document


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
