"""A report read back from its JSON: only what `as_json` writes is taken."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from parity.core.codec import load, typed
from parity.core.exceptions import InputError
from parity.core.verdicts import IDLE, Coverage, Row
from parity.report.as_json import FORMAT, SAME, Document
from parity.report.cells import EVERY, to_row
from parity.report.contents import Contents

Kind = TypeVar("Kind", bound=Contents)

AGAIN = "make the report again"


def read_report(path: str | Path, kind: type[Kind]) -> Kind:
    """Report in the file `path`, or in `report.json` of the folder `path`.

    It has everything but `outputs` and `repro`, the arrays, which no file holds.

    Raises:
        InputError: no such file, too large, no JSON, cut short, of another format or version, or
            not what a report writes.
    """
    folder = os.path.isdir(path)  # noqa: PTH112 - false of a name that no file can have
    file = Path(path) / "report.json" if folder else Path(path)
    content = load(
        file, "parity report", FORMAT, "a report.json, or the folder that holds it", AGAIN
    )
    document = typed(content, Document, str(file))
    counts = {name: value for name, value in document.coverage.items() if name != "complete"}
    report = kind(
        **{name: getattr(document, name) for name in SAME},
        rows=_rows(document, str(file)),
        coverage=_coverage(counts, f"{file}.coverage"),
        rungs=document.ladder,
    )
    if document.coverage.get("complete") != report.coverage.complete:
        raise InputError(f"{file}.coverage: its counts are not those it sums up: {AGAIN}")
    if report.verdict != document.verdict:
        raise InputError(
            f"{file}: says {document.verdict}, and what it holds makes {report.verdict}: was it "
            f"edited? {AGAIN}"
        )
    return report


def _coverage(counts: dict[str, Any], where: str) -> Coverage:
    found: Coverage = typed({"idle": [], **counts}, Coverage, where)
    # a file has the reason alone
    return replace(found, idle=tuple(path for path, why in found.declared.items() if why == IDLE))


def _rows(document: Document, where: str) -> tuple[Row, ...]:
    if document.columns != EVERY:
        raise InputError(f"{where}: its columns are not those of this version; {AGAIN}")
    if len(document.reasons) != len(document.rows):
        counts = f"{len(document.reasons)} reasons for {len(document.rows)} rows"
        raise InputError(f"{where}: {counts}; {AGAIN}")
    rows = []
    for number, (row, reason) in enumerate(zip(document.rows, document.reasons, strict=True)):
        place = f"{where}.rows[{number}]"
        if len(row) != len(EVERY):
            raise InputError(f"{place}: {len(row)} values for {len(EVERY)} columns; {AGAIN}")
        rows.append(to_row(dict(zip(EVERY, row, strict=True)), reason, place))
    return tuple(rows)
