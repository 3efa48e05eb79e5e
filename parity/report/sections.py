"""Sections of a report: the same sentences on a terminal, in Markdown and on the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parity.core.globs import path_name
from parity.core.measurements import Emulation, Loss, NonFinite
from parity.core.verdicts import Coverage, Row
from parity.judge.verdict import GRADES, MEANINGS
from parity.report.contents import Contents
from parity.report.table import (
    KindSummary,
    RungSummary,
    by_kind,
    cut,
    grouped,
    summarise,
    unnumbered,
)
from parity.report.weights import weight_lines

MOST = 3
"""How many of the modules that lose most are named in a sentence."""

MORE = "and {} more"

GRADE_KEY = "Grades of an MAE: " + "; ".join(
    f"{name} below {limit:g} ({MEANINGS[name]})" for name, limit in GRADES
)
BOUNDED_KEY = "Bounded: not measured; the relative error alone shows R under 1.5 times what fails."

HEADS = {
    "incl_mae": "incl MAE",
    "worst": "worst at",
    "free_mae": "free MAE",
    "rel_l2": "rel L2",
    "r": "R",
    "measured": "R measured",
    "p95": "95 %",
    "warn": "WARN above",
    "fail": "FAIL above",
}
"""Heads of the columns of summaries whose fields have other names."""

LIMITS = ("limit", "warn", "fail")


@dataclass(frozen=True)
class Section:
    """Sentences under a title; a terminal has `mark` before each instead of the title."""

    title: str
    lines: Sequence[str]
    mark: str = "- "


def sections(report: Contents) -> list[Section]:
    """Return the sections that have something to say, the most important last.

    A terminal shows the verdict below them, a page above them and them the other way round.
    """
    found = [
        Section("Coverage", coverage_lines(report.coverage)),
        Section("Weights", weight_lines(report.weights, report.coverage)),
        Section("What the inputs did not exercise", report.unexercised, "- not exercised: "),
        Section("Precision", tuple(precision_lines(report.emulations)), ""),
        Section("Not finite", tuple(nonfinite_lines(report.nonfinite)), ""),
        *reasons_of(report),
    ]
    return [section for section in found if section.lines]


def reasons_of(report: Contents) -> list[Section]:
    """Return the sections that say why a report without a fault is no PASS."""
    return [
        Section("Neither passed nor failed", doubt_lines(report.doubts)),
        Section("Notes", report.notes, "note: "),
    ]


def number(value: float) -> str:
    """Three digits, a dash for what was not measured."""
    if value != value or value == float("-inf"):
        return "–"  # noqa: RUF001
    return f"{value:.2e}" if value and not 1e-2 <= abs(value) < 1e4 else f"{value:.3g}"


def plain(value: Any) -> str:
    """A fact, or an entry of the environment, as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def ladder_cells(report: Contents) -> list[dict[str, str]]:
    """Lines of the ladder by column."""
    return [_cells(line) for line in summarise(report.rows, report.rungs)]


def kind_cells(report: Contents) -> list[dict[str, str]]:
    """Lines of the table of R by kind of module, by column."""
    return [_cells(line) for line in by_kind(report.rows)]


def _cells(line: RungSummary | KindSummary) -> dict[str, str]:

    def text(name: str, value: Any) -> str:
        if name in LIMITS:
            return f"{value:g}"
        return number(value) if isinstance(value, float) else str(value)

    return {HEADS.get(name, name): text(name, value) for name, value in vars(line).items()}


def coverage_lines(coverage: Coverage) -> list[str]:
    """Sentences on what was compared and what was not, and why."""
    c = coverage
    elsewhere = c.modules - len(c.matched) - len(c.declared) - len(c.unmatched)
    inlined = f" + {elsewhere} inlined into the parent" if elsewhere else ""
    left: dict[str, list[str]] = {}
    for word, reasons in (("declared", c.declared), ("inlined", c.inlined)):
        for path, reason in reasons.items():
            left.setdefault(f"{word}, {reason}", []).append(path)
    return [
        f"modules: {len(c.matched)} matched + {len(c.declared)} declared{inlined} of {c.modules}",
        f"calls: {c.matched_calls} of {c.calls} compared",
        f"parameters: {c.matched_parameters} of {c.parameters} tensors",
        f"buffers: {c.matched_buffers} of {c.buffers}",
        *(f"{why}: {', '.join(paths)}" for why, paths in left.items()),
        *c.remarks,
        *(f"**unmatched module**: {path}" for path in c.unmatched),
        *(f"**unmatched call**: {text}" for text in cut(c.unmatched_calls, MORE)),
        *(f"**unmatched tensors**: {text}" for text in cut(c.unmatched_tensors, MORE)),
        *([f"if these need no counterpart: `{c.proposal}`"] if c.proposal else []),
    ]


def doubt_lines(rows: Sequence[Row]) -> Sequence[str]:
    """Reasons why rows are WARN or UNKNOWN, the calls of one module together."""
    alike = grouped(rows, lambda row: (row.verdict, row.path, row.leaf, unnumbered(row.reason)))
    lines = []
    for row, *others in alike.values():
        more = f", {len(others) + 1} calls" if others else ""
        output = f" output `{row.leaf}`" if row.leaf else ""
        where = f"`{path_name(row.path)}`{output} call {row.call} of {row.case}{more}"
        lines.append(f"{row.verdict}: {where}: {row.reason}")
    return cut(lines, MORE)


def precision_lines(emulations: Sequence[Emulation]) -> Iterator[str]:
    """Error that emulated hardware adds at each output, and where, if a case calls the whole."""
    for one in emulations:
        if one.path:
            continue
        name = f"precision {one.mode}"
        if not any(added for added, _ in one.outputs.values()):
            yield f"{name} changes nothing in {one.case}: no product there is one that it rounds"
            continue
        for leaf, (added, own) in one.outputs.items():
            where = f"output `{leaf}`" if leaf else "the output"
            yield (
                f"{name} adds rel_l2 {added:.1e} at {where} of {one.case}; "
                f"the port itself {own:.1e}"
            )
        if one.calls > 1:
            most = {loss.path: loss for loss in reversed(one.losses)}  # the worst of each module
            worst = sorted(most.values(), key=lambda loss: -loss.rel_l2)[:MOST]
            names = ", ".join(f"{place(loss)} {loss.rel_l2:.1e}" for loss in worst)
            yield (
                f"{name} alone, no fault of the port, takes {one.lossy} of {one.calls} calls of "
                f"{one.case} out of the rounding of float32{f'; most {names}' if names else ''}"
            )


def place(loss: Loss) -> str:
    """The call, and which of its values."""
    leaf = f" `{loss.leaf}`" if loss.leaf else ""
    what = f"{leaf} passed to `{loss.to}`" if loss.to else leaf
    return f"`{path_name(loss.path)}` call {loss.call}{what}"


def nonfinite_lines(found: Sequence[NonFinite]) -> Iterator[str]:
    """The first call of each side that is not finite."""
    for one in found:
        named = {"NaN": one.nan, "infinite": one.inf}
        counts = [f"{count} {name}" for name, count in named.items() if count]
        leaf = f" in output `{one.leaf}`" if one.leaf else ""
        given = f", {one.given} entries of them not finite already" if one.given else ""
        alike = "; the other side has the same" if one.alike else ""
        yield (
            f"not finite: the {one.side} first in `{path_name(one.path)}` ({one.kind}), call "
            f"{one.call} of {one.case}: {' and '.join(counts)} of {one.size} entries{leaf}; "
            f"its inputs reach {one.largest:.1e}{given}{alike}"
        )
