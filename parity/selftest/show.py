"""Outcome of a self-test, for people and as CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity.core.files import write_text
from parity.core.globs import path_name
from parity.report.as_json import dumps
from parity.report.table import csv
from parity.selftest.trials import SelfTest, Trial, share

if TYPE_CHECKING:
    import pandas as pd


def to_frame(result: SelfTest) -> "pd.DataFrame":
    """Return a table with a line for each trial."""
    import pandas as pd

    return pd.DataFrame([_record(t) for t in (*result.healthy, *result.singles, *result.triples)])


def write(result: SelfTest, folder: Path) -> Path:
    """Write `selftest.csv`."""
    path = folder / "selftest.csv"
    write_text(path, csv(to_frame(result)))
    return path


def show(result: SelfTest, console: Console) -> None:
    """Print a line for each mistake, then the totals, then what went wrong."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in ("mistake", "tried", "killed", "place", "cause"):
        table.add_column(head, justify="left" if head == "mistake" else "right", no_wrap=True)
    names = dict.fromkeys(trial.mistakes for trial in result.singles)
    for name in names:
        _line(table, name[0], [trial for trial in result.singles if trial.mistakes == name])
    table.add_section()
    _line(table, "all", result.singles)
    _line(table, "three at once", result.triples)
    console.print(table)
    alarms = len(_alarms(result))
    console.print(f"the port without a mistake: {alarms} alarms in {len(result.healthy)} runs")
    show_verdict(result, console)


def show_verdict(result: SelfTest, console: Console) -> None:
    """Print what went wrong, and the verdict."""
    for trial in (*result.singles, *result.triples):
        if not (trial.place and trial.cause):
            console.print(Text(_story(trial), style="yellow"), soft_wrap=True)
    for trial in _alarms(result):
        console.print(Text(f"alarm: {_story(trial)}", style="red"), soft_wrap=True)
    style = "green" if result else "red"
    console.print(Text(f"selftest: {_verdict(result)}", style=style))


def to_json(result: SelfTest) -> str:
    """Return the verdict and every trial, in the columns of `selftest.csv`, as JSON."""
    groups = {"healthy": result.healthy, "singles": result.singles, "triples": result.triples}
    trials = {name: [_record(trial) for trial in group] for name, group in groups.items()}
    return dumps({"verdict": _verdict(result), **trials}, indent=1)


def _verdict(result: SelfTest) -> str:
    return "PASS" if result else "FAIL"


def _alarms(result: SelfTest) -> list[Trial]:
    return [trial for trial in result.healthy if trial.verdict not in ("PASS", "WARN")]


def _line(table: Table, name: str, trials: Sequence[Trial]) -> None:
    if trials:
        parts = [
            share(answers)
            for answers in (
                (trial.killed for trial in trials),
                (trial.place for trial in trials),
                (trial.cause for trial in trials),
            )
        ]
        table.add_row(name, str(len(trials)), *(f"{100 * part:.3g} %" for part in parts))


def _story(trial: Trial) -> str:
    wrong = ", ".join(f"{path_name(path)} ({'/'.join(w)})" for path, w in trial.expected.items())
    named = ", ".join(f"{path_name(path)} ({word})" for path, word in trial.found.items())
    what = " + ".join(trial.mistakes) or "no mistake"
    return (
        f"{what}, seed {trial.seed}, {trial.case}: expected {wrong or 'nothing'}; "
        f"found {named or 'nothing'}, {trial.verdict}: {trial.evidence}"
    )


def _record(trial: Trial) -> dict[str, object]:
    return {
        "mistake": " + ".join(trial.mistakes),
        "seed": trial.seed,
        "case": trial.case,
        "expected": " ".join(path_name(path) for path in trial.expected),
        "causes": " ".join("/".join(words) for words in trial.expected.values()),
        "found": " ".join(path_name(path) for path in trial.found),
        "found_causes": " ".join(trial.found.values()),
        "verdict": trial.verdict,
        "killed": trial.killed,
        "place": trial.place,
        "cause": trial.cause,
        "evidence": trial.evidence,
    }
