"""Reports of one comparison kept in a folder, a file for each, in the order in which they came."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.core.exceptions import InputError
from parity.core.files import write_all
from parity.core.globs import check_used, rooted
from parity.core.verdicts import Row, Verdict
from parity.report.diff import Diff, comparable, diff
from parity.report.report import Report
from parity.report.sections import number
from parity.report.table import COLOURS, largest

_NAME = re.compile(r"(\d{4,})_.+\.json")


@dataclass(frozen=True)
class Point:
    """What one report says of the chosen rows: the largest R and MAE, NaN if not measured.

    `mae` is the inclusive one, or else the free-running one.
    """

    number: int
    commit: str
    verdict: Verdict
    r: float
    mae: float
    fault: str


def add(path: str | Path, folder: Path) -> Path:
    """Keep a report, which is a file or the folder of one, as the next of `folder`.

    Raises:
        InputError: it is no report, or cannot be written.
    """
    commit = str(Report.from_json(path).environment.get("commit") or "no-commit")
    last = max((kept for kept, _ in _files(folder)), default=0)
    name = f"{last + 1:04}_{re.sub('[^0-9A-Za-z]+', '-', commit)}.json"
    content = Path(path, "report.json") if Path(path).is_dir() else Path(path)
    write_all(folder, {name: content.read_bytes()})
    return folder / name


def history(folder: Path) -> dict[int, Report]:
    """All reports of a folder by their numbers.

    Raises:
        InputError: there is none, or one cannot be read.
    """
    found = {kept: Report.from_json(path) for kept, path in _files(folder)}
    if not found:
        raise InputError(f"{folder}: holds no reports; add one with --add REPORT")
    return found


def points(reports: dict[int, Report], only: str) -> list[Point]:
    """What each report says of the modules whose path the glob matches.

    Raises:
        InputError: it matches no module of any report.
    """
    glob = rooted(only)
    paths = [row.path for report in reports.values() for row in report.rows]
    check_used("--only", [glob] if only != "*" else [], paths, "module of a report")
    return [
        _point(kept, report, [row for row in report.rows if fnmatchcase(row.path, glob)])
        for kept, report in reports.items()
    ]


def since_last_good(reports: dict[int, Report]) -> tuple[int, Diff] | None:
    """The number of the last PASS before the newest report, and what changed since.

    A report of other inputs or cases is passed over; `None` if no PASS is left.
    """
    *before, newest = reports
    for kept in reversed(before):
        if reports[kept].verdict == "PASS" and comparable(reports[kept], reports[newest]):
            found = diff(reports[kept], reports[newest])
            if not found.other_inputs:
                return kept, found
    return None


def _files(folder: Path) -> list[tuple[int, Path]]:
    names = ((_NAME.fullmatch(path.name), path) for path in folder.glob("*.json"))
    return sorted((int(found[1]), path) for found, path in names if found)


def _point(kept: int, report: Report, rows: Sequence[Row]) -> Point:
    commit = str(report.environment.get("commit") or "")
    fault = report.first_fault.path if report.first_fault else ""
    r = largest(row.r for row in rows)
    mae = largest(_mae(row) for row in rows if row.limited)
    return Point(kept, commit, report.verdict, r, mae, fault)


def _mae(row: Row) -> float:
    if row.inclusive is not None and not math.isnan(row.inclusive.mae):
        return row.inclusive.mae
    return row.metrics.mae if row.metrics else math.nan


def show_history(found: Sequence[Point], console: Console) -> None:
    """Print a line for each report, with a bar: two cells for each power of ten of R above 0.1."""
    numbers = (Column(head, justify="right", no_wrap=True) for head in ("R", "MAE"))
    heads = (Column("", justify="right"), Column("commit", no_wrap=True), *numbers)
    table = Table(*heads, "", "verdict", Column("first fault", overflow="fold"), box=SIMPLE_HEAD)
    table.pad_edge = False
    for point in found:
        colour = COLOURS[point.verdict]
        bar = Text("━" * _cells(point.r), colour)
        verdict = Text(point.verdict, colour)
        figures = number(point.r), number(point.mae)
        table.add_row(
            str(point.number), Text(point.commit), *figures, bar, verdict, Text(point.fault)
        )
    console.print(table)


def _cells(r: float) -> int:
    if math.isnan(r) or r <= 0.1:
        return 0
    return min(round(2 * math.log10(10 * r)), 16) if math.isfinite(r) else 16
