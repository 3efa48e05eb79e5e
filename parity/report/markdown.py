"""A report as Markdown: the verdict first, then what it rests on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parity.report.cells import cells
from parity.report.contents import Contents
from parity.report.sections import (
    BOUNDED_KEY,
    GRADE_KEY,
    fault_place,
    fault_reason,
    kind_cells,
    ladder_cells,
    number,
    place,
    plain,
    sections,
)
from parity.report.table import LISTED

WORST = (
    *("rung", "case", "path", "call", "leaf"),
    *("mae", "incl_mae", "incl_rel_l2", "R", "grade", "verdict"),
)
"""Columns of the worst rows."""


def as_markdown(report: Contents) -> str:
    """Summary, faults, rungs, R by kind, the sections, the worst rows, environment."""
    faults = [f"{fault_place(x)}: {fault_reason(x, '**')}. {x.hint}" for x in report.faults]
    rungs, kinds = ladder_cells(report), kind_cells(report)
    parts = [
        f"# {report.name}: {report.verdict}",
        _items(_texts(report.facts)),
        *(("## Faults", _items(faults, "1. ")) if faults else ()),
        *(("## Rungs", _table(rungs), GRADE_KEY) if rungs else ()),
        *(("## R by kind of module", _table(kinds), BOUNDED_KEY) if kinds else ()),
    ]
    for section in reversed(sections(report)):
        parts += [f"## {section.title}", _items(section.lines)]
        if section.title == "Precision":
            parts.append(_table(_losses(report)))
    parts += ["## Worst inclusive errors", _table(_worst(report))]
    parts += ["## Environment", _items(_texts(report.environment))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _items(lines: Iterable[str], mark: str = "- ") -> str:
    return "\n".join(f"{mark}{line}" for line in lines)


def _texts(values: Mapping[str, Any]) -> Iterable[str]:
    for key, value in values.items():
        yield f"{key}: `{value}`" if isinstance(value, str) else f"{key}: {plain(value)}"


def _table(lines: Sequence[Mapping[str, str]]) -> str:
    rows = [list(lines[0]), ["---"] * len(lines[0])] if lines else []
    rows += [list(line.values()) for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _losses(report: Contents) -> list[dict[str, str]]:
    losses = [(one.case, loss) for one in report.emulations for loss in one.losses]
    losses.sort(key=lambda pair: -pair[1].rel_l2)
    return [
        {"case": case, "call": place(x), "kind": x.kind, "added, relative": number(x.rel_l2)}
        for case, x in losses[:LISTED]
    ]


def _worst(report: Contents) -> list[dict[str, str]]:
    rows = [(row.inclusive.rel_l2, row) for row in report.rows if row.inclusive is not None]
    rows.sort(key=lambda pair: pair[0], reverse=True)
    return [
        {k: number(v) if isinstance(v, float) else str(v) for k, v in cells(row, WORST).items()}
        for _, row in rows[:LISTED]
    ]
