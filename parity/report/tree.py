"""The tree of a report's modules on a terminal, with the worst error of each one's own code."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.core.globs import ROOT, check_used, rooted
from parity.core.verdicts import Row
from parity.report.contents import Contents
from parity.report.markdown import number
from parity.report.table import largest, worst_verdict
from parity.report.terminal import COLOURS, show_verdict

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
    rows: dict[str, list[Row]] = {}
    for row in report.rows:
        rows.setdefault(row.path, []).append(row)
    paths, only = [*rows, *report.coverage.unmatched], rooted(only)
    check_used("--only", [only] if only != "*" else [], paths, "module of the report", fnmatchcase)
    shown = _with_ancestors(path for path in paths if fnmatchcase(path, only))
    own = any(row.exclusive is not None for row in report.rows)
    table = Table(title=report.name, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("module", overflow="fold")
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("R", justify="right", no_wrap=True)
    for head in ("own rel L2", "with inside") if own else ("free rel L2", ""):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("1e-8 to 1", no_wrap=True)
    table.add_column("", no_wrap=True)
    for path, guide in _lines(shown, depth):
        below = filter(partial(_inside, path), shown) if _level(path) == depth else ()
        folded = [row for other in below for row in rows.get(other, ())]
        name = Text.assemble((guide, "dim"), path.rpartition(".")[2] or ROOT)
        table.add_row(name, *_figures(rows.get(path, []), folded, own))
    console.print(table)
    for path in report.coverage.unmatched:
        console.print(Text(f"unmatched module: {path}", style="red"), soft_wrap=True)
    show_verdict(report, console)


def _figures(rows: Sequence[Row], folded: Sequence[Row], own: bool) -> Iterator[str | Text]:
    """The cells of a module behind its name; `folded` are the rows inside it that are not shown."""
    text = Text()
    if not rows:
        yield from ("", "", "", "", "")
    else:
        verdict = worst_verdict([row.verdict for row in rows])
        r = largest(row.exclusive.r for row in rows if row.exclusive)
        if own:
            error = largest(row.exclusive.rel_l2 for row in rows if row.exclusive)
        else:
            error = largest(row.metrics.rel_l2 for row in rows if row.metrics)
        yield str(len({(row.case, row.call) for row in rows}))
        yield number(r)
        yield number(error)
        whole = largest(row.inclusive.rel_l2 for row in rows if row.inclusive)
        yield number(whole) if own else ""
        yield Text(_bar(error), style=COLOURS[verdict])
        text.append(verdict, COLOURS[verdict])
    if folded:
        worst = worst_verdict([row.verdict for row in folded])
        count = len({row.path for row in folded})
        text.append(f" {count} inside: ", "dim").append(worst, COLOURS[worst])
    yield text


def _bar(error: float) -> str:
    if math.isnan(error) or error <= 0:
        return ""
    decades = DECADES + (math.log10(error) if math.isfinite(error) else 0)
    return "━" * min(max(math.ceil(CELLS * decades / DECADES), 1), CELLS)


def _with_ancestors(paths: Iterable[str]) -> Mapping[str, None]:
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split(".") if path else []
        found |= {".".join(parts[:level]): None for level in range(len(parts) + 1)}
    return found


def _lines(paths: Mapping[str, None], depth: int | None) -> Iterator[tuple[str, str]]:
    """Each path and the lines of the tree before it, a module before those inside it."""
    children: dict[str, list[str]] = {}
    for path in paths:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)

    def walk(path: str, guide: str, under: str) -> Iterator[tuple[str, str]]:
        yield path, guide
        inside = children.get(path, []) if depth is None or _level(path) < depth else []
        for child in inside:
            last = child == inside[-1]
            yield from walk(
                child, under + ("└─ " if last else "├─ "), under + ("   " if last else "│  ")
            )

    if paths:
        yield from walk("", "", "")


def _level(path: str) -> int:
    return len(path.split(".")) if path else 0


def _inside(path: str, other: str) -> bool:
    return other.startswith(f"{path}.") if path else bool(other)
