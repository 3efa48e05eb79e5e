"""Tree of a report's modules on a terminal, with the worst local error of each one."""

import math
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.core.globs import check_used, rooted
from parity.report.contents import Contents
from parity.report.modules import Module, module_tree
from parity.report.sections import number
from parity.report.table import COLOURS, worst_verdict
from parity.report.terminal import line, show_verdict

NEEDED = (70, 0, 0, 80, 100)
"""Columns of the terminal from which on calls, R, the two errors and the bar are shown."""

CELLS, DECADES = 16, 8
"""Length of a bar, and how many powers of ten up to 1 it spans."""


def show_tree(
    report: Contents, console: Console, *, depth: int | None = None, only: str = "*"
) -> None:
    """Print the modules down to `depth` levels below the root whose paths `only` matches, those
    around them, the faults and the verdict.

    Raises:
        InputError: `only` matches no module.
    """
    root, only = module_tree(report), rooted(only)
    paths = [*dict.fromkeys(row.path for row in report.rows), *report.coverage.unmatched]
    check_used("--only", [only] if only != "*" else [], paths, "module of the report")
    own = any(row.exclusive is not None for row in report.rows)
    heads = ("calls", "R", *(("local rel L2", "with inside") if own else ("free rel L2", "")))
    figures = [Column(head, justify="right", no_wrap=True) for head in heads]
    figures.append(Column("1e-8 to 1", no_wrap=True))
    shown = [at for at in range(len(figures)) if console.width >= NEEDED[at]]
    columns = [Column("module", overflow="fold"), *(figures[at] for at in shown), Column()]
    table = Table(*columns, title=line(report.name), title_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    for module, guide, hides in _lines(_chosen(root, only), depth):
        name = Text.assemble((guide, "dim"), line(module.name))
        cells = [*_figures(module, own)]
        table.add_row(name, *(cells[at] for at in shown), _verdicts(module, hides))
    console.print(table)
    for path in report.coverage.unmatched:
        console.print(line(f"unmatched module: {path}", "red"), soft_wrap=True)
    show_verdict(report, console)


def _chosen(module: Module, only: str) -> Module:
    """The module with those inside it that `only` matches, and those around them."""
    inside = [_chosen(child, only) for child in module.inside]
    kept = tuple(one for one in inside if one.inside or fnmatchcase(one.path, only))
    return replace(module, inside=kept)


def _lines(
    module: Module, depth: int | None, guide: str = "", under: str = ""
) -> Iterator[tuple[Module, str, bool]]:
    """A module and those inside it, each with the lines of the tree before its name; true for one
    whose inside is not shown.
    """
    yield module, guide, depth == 0
    for child in module.inside if depth != 0 else ():
        end, below = ("└─ ", "   ") if child is module.inside[-1] else ("├─ ", "│  ")
        yield from _lines(child, None if depth is None else depth - 1, under + end, under + below)


def _figures(module: Module, own: bool) -> Iterator[str | Text]:
    """The cells of a module between its name and its verdict."""
    if not module.rows:
        yield from ("", "", "", "", "")
        return
    error = module.worst.own if own else module.worst.free
    yield str(module.calls)
    yield from map(number, (module.worst.r, error))
    yield number(module.worst.whole) if own else ""
    yield Text(_bar(error), style=COLOURS[module.verdict])


def _verdicts(module: Module, hides: bool) -> Text:
    """The verdict of a module, and the worst of those inside it that are not shown."""
    text = Text(module.verdict, COLOURS[module.verdict]) if module.rows else Text()
    folded = [one for one in module.below() if one.rows] if hides else []
    if folded:
        worst = worst_verdict([row.verdict for one in folded for row in one.rows])
        text.append(f" {len(folded)} inside: ", "dim").append(worst, COLOURS[worst])
    return text


def _bar(error: float) -> str:
    if math.isnan(error) or error <= 0:
        return ""
    decades = DECADES + (math.log10(error) if math.isfinite(error) else 0)
    return "━" * min(max(math.ceil(CELLS * decades / DECADES), 1), CELLS)
