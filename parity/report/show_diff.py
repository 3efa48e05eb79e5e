"""The difference between two reports on a terminal and as JSON."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from parity.report.as_json import dumps
from parity.report.diff import STATES, Change, Diff
from parity.report.sections import number
from parity.report.table import COLOURS, LISTED
from parity.report.terminal import line

STYLES = {"worse": "red", "vanished": "red", "new": "yellow", "better": "green"}


def show_diff(found: Diff, console: Console, factor: float | None) -> None:
    """Print in what else the runs differ, the worst changes, and what the ratchet says."""
    for other in found.other_inputs:
        text = f"other inputs, so errors cannot be compared: {other}"
        console.print(line(text, "bold yellow"), soft_wrap=True)
    for other in found.other_environment:
        console.print(line(f"other environment: {other}", "dim"), soft_wrap=True)
    if found.changes:
        numbers = (Column(x, justify="right", no_wrap=True) for x in ("before", "after", "times"))
        places = Column("", no_wrap=True), Column("output", overflow="fold"), "figure"
        table = Table(*places, *numbers, "verdict", box=SIMPLE_HEAD, pad_edge=False)
        for change in found.changes[:LISTED]:
            table.add_row(*_cells(change))
        console.print(table)
    if len(found.changes) > LISTED:
        more = len(found.changes) - LISTED
        console.print(f"and {more} more, which --json and --html list")
    for fault in found.new_faults:
        console.print(line(f"new fault: {fault}", "red"), soft_wrap=True)
    console.print(found.counts)
    if factor is not None:
        style = "green" if found.holds(factor) else "red"
        console.print(line(found.ratchet(factor), style), soft_wrap=True)


def to_json(found: Diff, factor: float | None) -> str:
    """The same, with every change, as one JSON document."""
    counts: dict[str, int] = {state: len(found.of(state)) for state in STATES}
    document = {
        "before": {"name": found.names[0], "verdict": found.verdicts[0]},
        "after": {"name": found.names[1], "verdict": found.verdicts[1]},
        "other_inputs": found.other_inputs,
        "other_environment": found.other_environment,
        "new_faults": found.new_faults,
        "rows": {"same": found.same, **counts},
        "fail_if_worse": factor,
        "holds": None if factor is None else found.holds(factor),
        "changes": [vars(change) for change in found.changes],
    }
    return dumps(document, indent=1)


def _cells(change: Change) -> Iterator[str | Text]:
    yield Text(change.state, style=STYLES[change.state])
    yield line(change.where)
    yield change.figure
    yield from map(number, (change.before, change.after, change.times))
    yield Text(" then ").join(Text(word, style=COLOURS[word]) for word in change.verdicts)
