"""A report as Markdown: the verdict first, then what it rests on."""

from collections.abc import Iterable, Sequence
from typing import Any

from parity.judge.verdict import GRADES, MEANINGS
from parity.report.cells import record
from parity.report.contents import Contents
from parity.report.faults import fault_place, fault_reason
from parity.report.sections import doubt_lines, nonfinite_lines, place, precision_lines
from parity.report.table import RungSummary, by_kind, summarise
from parity.report.weights import weight_lines

WORST = 20
"""How many of the worst rows are listed."""


GRADE_KEY = "Grades of an MAE: " + "; ".join(
    f"{name} below {limit:g} ({MEANINGS[name]})" for name, limit in GRADES
)


def as_markdown(report: Contents) -> str:
    """Summary, faults, rungs, precision, the worst rows, coverage, weights, environment."""
    parts = [f"# {report.name}: {report.verdict}", ""]
    parts += [f"- {key}: {_text(value)}" for key, value in report.facts.items()]
    parts += ["", *_faults(report), *_notes(report)]
    if report.rungs:
        parts += [
            "## Rungs",
            "",
            rung_table(summarise(report.rows, report.rungs)),
            "",
            GRADE_KEY,
            "",
        ]
    parts += _kinds(report)
    if report.emulations:
        parts += ["## Precision", "", *(f"- {x}" for x in precision_lines(report.emulations)), ""]
        parts += [_losses(report), ""]
    if report.doubts:
        parts += ["## Neither passed nor failed", "", *doubt_lines(report.doubts), ""]
    parts += ["## Worst inclusive errors", "", _worst(report), ""]
    parts += ["## Coverage", "", *coverage_lines(report), ""]
    parts += ["## Weights", "", *weight_lines(report.weights, report.coverage), ""]
    if report.unexercised:
        parts += ["## What the inputs did not exercise", ""]
        parts += [*(f"- {gap}" for gap in report.unexercised), ""]
    parts += ["## Environment", ""]
    parts += [f"- {key}: {_text(value)}" for key, value in report.environment.items()]
    return "\n".join(parts) + "\n"


def rung_table(lines: Sequence[RungSummary]) -> str:
    """The ladder, one line per rung."""
    head = ("rung", "rows", "limit", "worst inclusive MAE", "of", "worst free-running MAE",
            "worst relative", "worst R", "grade", "verdict")  # fmt: skip
    body = [
        (x.rung, str(x.rows), f"{x.limit:g}", number(x.incl_mae), f"`{x.worst}`",
         number(x.free_mae), number(x.rel_l2), number(x.r), x.grade, x.verdict)
        for x in lines
    ]  # fmt: skip
    return _table(head, body)


def coverage_lines(report: Contents) -> list[str]:
    """Lines on what was compared and what was not, and why."""
    left = [f"- {word}, {why}: {', '.join(paths)}" for word, why, paths in left_out(report)]
    return [*count_lines(report), *left, *unmatched_lines(report)]


def count_lines(report: Contents) -> list[str]:
    """Counts of what was compared."""
    c = report.coverage
    elsewhere = c.modules - len(c.matched) - len(c.declared) - len(c.unmatched)
    dissolved = f" + {elsewhere} dissolved" if elsewhere else ""
    return [
        f"- modules: {len(c.matched)} matched + {len(c.declared)} declared{dissolved} "
        f"of {c.modules}",
        f"- calls: {c.matched_calls} of {c.calls} compared",
        f"- parameters: {c.matched_parameters} of {c.parameters} tensors",
        f"- buffers: {c.matched_buffers} of {c.buffers}",
    ]


def left_out(report: Contents) -> list[tuple[str, str, list[str]]]:
    """Modules that need no counterpart: "declared" or "dissolved", the reason, the paths."""
    c = report.coverage
    found: dict[tuple[str, str], list[str]] = {}
    for word, reasons in (("declared", c.declared), ("dissolved", c.dissolved)):
        for path, reason in reasons.items():
            found.setdefault((word, reason), []).append(path)
    return [(word, reason, paths) for (word, reason), paths in found.items()]


def unmatched_lines(report: Contents) -> list[str]:
    """Lines on what lacks a counterpart, which fails."""
    c = report.coverage
    hints = {path: f"; {hint}" for path, hint in c.suggestions.items()}
    lines = [f"- **unmatched module**: {path}{hints.get(path, '')}" for path in c.unmatched]
    lines += [f"- **unmatched call**: {text}" for text in c.unmatched_calls[:WORST]]
    lines += [f"- **unmatched tensors**: {text}" for text in c.unmatched_tensors[:WORST]]
    return lines


def number(value: float) -> str:
    """Three digits, a dash for what was not measured."""
    if value != value or value == float("-inf"):
        return "–"  # noqa: RUF001
    return f"{value:.2e}" if value and not 1e-2 <= abs(value) < 1e4 else f"{value:.3g}"


def _faults(report: Contents) -> list[str]:
    if not report.faults:
        return []
    lines = ["## Faults", ""]
    for fault in report.faults:
        lines.append(f"1. {fault_place(fault)}: {fault_reason(fault, '**')}. {fault.hint}")
    return [*lines, ""]


def _notes(report: Contents) -> list[str]:
    lines = (*report.notes, *nonfinite_lines(report.nonfinite))
    return [f"Note: {line}\n" for line in lines]


def _losses(report: Contents) -> str:
    losses = [(one.case, loss) for one in report.emulations for loss in one.losses]
    losses.sort(key=lambda pair: -pair[1].rel_l2)
    body = [(case, place(loss), loss.kind, number(loss.rel_l2)) for case, loss in losses[:WORST]]
    return _table(("case", "call", "kind", "added, relative"), body)


def _kinds(report: Contents) -> list[str]:
    lines = by_kind(report.rows)
    if not lines:
        return []
    head = ("kind", "calls", "R measured", "bounded", "median", "95 %", "largest", "WARN above",
            "FAIL above")  # fmt: skip
    body = [
        (x.kind, str(x.calls), str(x.measured), str(x.bounded), number(x.median), number(x.p95),
         number(x.largest), f"{x.warn:g}", f"{x.fail:g}")
        for x in lines
    ]  # fmt: skip
    key = "Bounded: not measured; the relative error alone shows R under 1.5 times what fails."
    return ["## R by kind of module", "", _table(head, body), "", key, ""]


def _worst(report: Contents) -> str:
    rows = [row for row in report.rows if row.inclusive is not None]
    rows.sort(key=lambda row: row.inclusive.rel_l2 if row.inclusive else 0.0, reverse=True)
    columns = ("rung", "case", "path", "call", "leaf", "mae", "incl_mae", "incl_rel_l2", "R",
               "grade", "verdict")  # fmt: skip
    body = []
    for row in rows[:WORST]:
        values = record(row)
        cells = [values[column] for column in columns]
        body.append([number(cell) if isinstance(cell, float) else str(cell) for cell in cells])
    return _table(columns, body)


def _table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return f"`{value}`" if isinstance(value, str) else str(value)
