"""A report as Markdown: the verdict first, then what it rests on."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parity.core.exceptions import escaped
from parity.core.verdicts import Fault
from parity.report.cells import cells
from parity.report.contents import Contents
from parity.report.excerpts import side_by_side
from parity.report.faults import fault_parts, grouped_faults
from parity.report.sections import (
    BOUNDED_KEY,
    GRADE_KEY,
    kind_cells,
    ladder_cells,
    number,
    place,
    plain,
    sections,
)
from parity.report.table import LISTED

MARKUP = re.compile(r"[`\\]|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|(?<=\])[(\[]|\A(?:[#>~=]|[-+](?=[ -]))")
"""What Markdown would take for a tag, an entity, a link or the beginning of a block."""

WORST = (
    *("rung", "case", "path", "call", "leaf"),
    *("mae", "incl_mae", "incl_rel_l2", "R", "grade", "verdict"),
)
"""Columns of the worst rows."""


def as_markdown(report: Contents) -> str:
    """Summary, faults, rungs, R by kind, the sections, the worst rows, environment."""
    rungs, kinds = ladder_cells(report), kind_cells(report)
    title, *faults = _head(report)
    parts = [
        title,
        _items(_texts(report.facts)),
        *faults,
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


def markdown_head(report: Contents) -> str:
    """The verdict and the faults alone, as for an issue."""
    return "\n\n".join(_head(report)) + "\n"


def _head(report: Contents) -> list[str]:
    faults = [f"1. {_fault(*group)}{_source(group[0])}" for group in grouped_faults(report.faults)]
    title = f"# {_safe(report.name)}: {report.headline}"
    return [title, "## Faults", "\n".join(faults)] if faults else [title]


def _fault(fault: Fault, *alike: Fault) -> str:
    """The cause, and an item of a list for each part."""
    parts = [f"   - {name}: {_safe(text)}" for name, text in fault_parts(fault, *alike).items()]
    return "\n".join([f"**{_safe(fault.cause or 'cause not known')}**", *parts])


def _source(fault: Fault) -> str:
    """The lines of both sides, in a block that belongs to an item of a list."""
    if fault.lines is None:
        return ""
    lines = side_by_side(fault.lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", "\n".join(lines))), default=0))
    block = (f"{fence}text", *lines, fence)
    return "\n\n" + "\n".join(f"   {line}".rstrip() for line in block)


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_safe(line)}" for line in lines)


def _safe(text: str) -> str:
    """The text as one line whose names are no markup: `code` and **bold** are the report's own."""
    pieces = re.split("(`[^`]+`)", escaped(text))
    pieces[::2] = [MARKUP.sub(r"\\\g<0>", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _texts(values: Mapping[str, Any]) -> Iterable[str]:
    for key, value in values.items():
        yield f"{key}: `{value}`" if isinstance(value, str) else f"{key}: {plain(value)}"


def _table(lines: Sequence[Mapping[str, str]]) -> str:
    rows = [list(lines[0]), ["---"] * len(lines[0])] if lines else []
    rows += [[_safe(x).replace("|", "\\|") for x in line.values()] for line in lines]
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
