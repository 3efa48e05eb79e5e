"""A report on a terminal, and progress while it is made."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from parity.core.exceptions import escaped
from parity.host.progress import Progress
from parity.report.contents import Contents
from parity.report.excerpts import side_by_side
from parity.report.faults import fault_parts, grouped_faults
from parity.report.sections import Section, ladder_cells, reasons_of, sections
from parity.report.table import COLOURS

WIDTH, WIDE = 100, 160
"""Columns where the output is no terminal; the second for tables with a path in each line."""

LABEL = 9
"""Characters before the text of a fault's part."""


class _Readable(Console):
    """Shows names as they can be read: what else a terminal would obey is escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = "\n".join(map(escaped, segment.text.split("\n")))
                yield Segment(lines, segment.style)


def line(text: str, style: str = "") -> Text:
    """A text that is one line, whatever a name in it holds."""
    return Text(escaped(text), style)


def output(width: int = WIDTH) -> Console:
    """Standard output, of this width if it is no terminal."""
    console = _Readable()
    return console if console.is_terminal else _Readable(width=width)


@contextmanager
def shown_progress(console: Console) -> Iterator[Progress]:
    """Progress as a bar on a terminal, nothing elsewhere.

    The time left is that of the stage, from how long its last steps took; how many stages are to
    come is not known.
    """
    if not console.is_terminal:
        yield Progress()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, _Times(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def listen(stage: str, done: int, total: int) -> None:
            if done == 0:  # the speed of another stage says nothing of this one
                bar.reset(task, description=stage, total=total)
            bar.update(task, completed=done)

        yield Progress(listen)


class _Times(ProgressColumn):
    """Time that the stage will take yet, once that can be told, and that all took so far."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.monotonic()

    def render(self, task: Task) -> Text:
        """As in 0:00:12 left of this stage, 0:01:30 so far."""
        left = task.time_remaining
        stage = "" if left is None else f"{timedelta(seconds=round(left))} left of this stage, "
        return Text(f"{stage}{timedelta(seconds=int(time.monotonic() - self._start))} so far")


def as_text(report: Contents) -> str:
    """Text that `show` prints, without colours."""
    file = StringIO()
    show(
        report,
        _Readable(
            file=file, width=WIDTH, color_system=None, force_jupyter=False, force_terminal=False
        ),
    )
    return file.getvalue().rstrip("\n")


def show(report: Contents, console: Console) -> None:
    """Print the ladder, the sections, the mistakes and the verdict."""
    if rungs := ladder_cells(report):
        table = Table(
            title=line(report.name), title_justify="left", box=SIMPLE_HEAD, pad_edge=False
        )
        shown = [name for name in rungs[0] if name != "worst at"]
        for name in shown:
            left = name in ("rung", "grade", "verdict")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for rung in rungs:
            table.add_row(*(line(rung[name], COLOURS.get(rung[name], "")) for name in shown))
        console.print(table)
    _show_sections(sections(report), console)
    show_verdict(report, console)


def say(console: Console, text: str, style: str = "", indent: str = "") -> None:
    """Print a text: on a terminal in lines that end between words, in a pipe as one line."""
    lines = [escaped(text)]
    if console.is_terminal:
        lines = wrap(
            lines[0],
            console.width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    for one in lines:
        console.print(line(one, style), soft_wrap=True)


def _show_sections(shown: Iterable[Section], console: Console) -> None:
    for section in shown:
        for sentence in section.lines:
            say(console, f"{section.mark}{sentence}".replace("**", ""))


def show_verdict(report: Contents, console: Console, *, reasons: bool = False) -> None:
    """Print a block for each mistake and the verdict, after the `reasons` if it is no PASS."""
    if reasons and not report:
        _show_sections(reasons_of(report), console)
    groups = grouped_faults(report.faults)
    for number, group in enumerate(groups, 1):
        of = f" {number} of {len(groups)}" if len(groups) > 1 else ""
        say(console, f"fault{of}: {group[0].cause or 'cause not known'}", "bold red")
        for name, text in fault_parts(*group).items():
            say(console, f"  {name:<{LABEL}}{text}".replace("`", ""), indent=" " * (2 + LABEL))
        width = console.width - 2 if console.is_terminal else None
        for row in side_by_side(group[0].lines, width) if group[0].lines else ():
            console.print(line(f"  {row}"), soft_wrap=True)
    say(console, f"{report.name}: {report.headline}", COLOURS[report.verdict])
