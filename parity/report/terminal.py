"""A report on a terminal, and progress while it is made."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from parity.progress import Progress
from parity.report.markdown import coverage_lines, number
from parity.report.report import Report
from parity.report.sections import doubt_lines, nonfinite_lines, precision_lines
from parity.report.table import summarise
from parity.report.weights import weight_lines

COLOURS = {"PASS": "green", "WARN": "yellow", "UNKNOWN": "yellow", "FAIL": "red"}


@contextmanager
def shown_progress(console: Console) -> Iterator[Progress]:
    """Progress as a bar on a terminal, as a line per stage elsewhere."""
    if not console.is_terminal:
        seen: set[str] = set()

        def line(stage: str, done: int, total: int) -> None:
            if stage not in seen:
                seen.add(stage)
                console.print(stage, markup=False, highlight=False)

        yield Progress(line)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield Progress(
            lambda stage, done, total: bar.update(
                task, description=stage, completed=done, total=total
            )
        )


def show(report: Report, console: Console) -> None:
    """Print the ladder, the faults, the coverage and the verdict."""
    if report.rungs:
        table = Table(title=report.name, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for head in ("rung", "rows", "limit", "incl MAE", "free MAE", "rel L2", "R", "grade", ""):
            justify: JustifyMethod = "left" if head in ("rung", "grade", "") else "right"
            table.add_column(head, justify=justify, no_wrap=True)
        for x in summarise(report.rows, report.rungs):
            table.add_row(
                x.rung, str(x.rows), f"{x.limit:g}", number(x.incl_mae), number(x.free_mae),
                number(x.rel_l2), number(x.r), x.grade, Text(x.verdict, style=COLOURS[x.verdict]),
            )  # fmt: skip
        console.print(table)
    for line in (*coverage_lines(report), *weight_lines(report.weights, report.coverage)):
        console.print(Text(line.replace("**", "")), soft_wrap=True)
    for gap in report.unexercised:
        console.print(Text(f"- not exercised: {gap}"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"))
    for line in doubt_lines(report.doubts):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    for line in (*precision_lines(report.emulations), *nonfinite_lines(report.nonfinite)):
        console.print(Text(line), soft_wrap=True)
    for fault in report.faults:
        where = f"{fault.path or '<root>'} ({fault.kind}), call {fault.call} of {fault.case}"
        segment = f", {fault.segment}" if fault.segment else ""
        cause = f"{fault.cause}: " if fault.cause else ""
        line = f"fault: {where}{segment}: {cause}{fault.evidence}"
        console.print(Text(line, style="red"), soft_wrap=True)
    console.print(Text(f"{report.name}: {report.verdict}", style=COLOURS[report.verdict]))
