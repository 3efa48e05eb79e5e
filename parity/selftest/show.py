"""Outcome of a self-test, for people and as CSV."""

from math import isnan
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from parity.core.files import write_text
from parity.core.globs import path_name
from parity.report.as_json import dumps
from parity.report.table import COLOURS, csv
from parity.report.terminal import line
from parity.selftest.trials import SelfTest, Trial, share


def write(result: SelfTest, folder: Path) -> Path:
    """Write `selftest.csv`, with a line for each trial."""
    lines = [_record(t) for t in (*result.healthy, *result.singles, *result.triples)]
    write_text(path := folder / "selftest.csv", csv(lines, list(lines[0])))
    return path


def show(result: SelfTest, console: Console) -> None:
    """Print a line for each mistake, then the totals, then what went wrong."""
    answers = ("killed", "place", "cause", "lines")
    numbers = (Column(head, justify="right", no_wrap=True) for head in ("tried", *answers))
    table = Table(Column("mistake", no_wrap=True), *numbers, box=SIMPLE_HEAD, pad_edge=False)
    groups: dict[str, list[Trial]] = {}
    for trial in result.singles:
        groups.setdefault(trial.mistakes[0], []).append(trial)
    totals = {"all": result.singles, "three at once": result.triples}
    for name, trials in (*groups.items(), *totals.items()):
        if name == "all":
            table.add_section()
        if trials:
            parts = (share(getattr(trial, answer) for trial in trials) for answer in answers)
            table.add_row(name, str(len(trials)), *map(_percent, parts))
    console.print(table)
    alarms, runs = len(result.alarms), len(result.healthy)
    console.print(f"the port without a mistake: {alarms} alarms in {runs} runs")
    show_verdict(result, console)


def show_verdict(result: SelfTest, console: Console) -> None:
    """Print what went wrong, and the verdict."""
    for trial in (*result.singles, *result.triples):
        if not (trial.place and trial.cause) or trial.lines is False:
            console.print(line(_story(trial), "yellow"), soft_wrap=True)
    for name in result.unshown:
        story = f"{name}: not shown: no module has a place for it, or it changes no output there"
        console.print(line(story, "yellow"), soft_wrap=True)
    for trial in result.alarms:
        console.print(line(f"alarm: {_story(trial)}", "red"), soft_wrap=True)
    console.print(line(f"selftest: {result.verdict}", COLOURS[result.verdict]))


def _percent(part: float) -> str:
    return "" if isnan(part) else f"{100 * part:.3g} %"


def to_json(result: SelfTest) -> str:
    """Return the verdict, what no trial shows, and every trial as in `selftest.csv`, as JSON."""
    groups = {"singles": result.singles, "triples": result.triples, "healthy": result.healthy}
    trials = {name: list(map(_record, group)) for name, group in groups.items()}
    return dumps({"verdict": result.verdict, "unshown": result.unshown, **trials}, indent=1)


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
        "lines": "" if trial.lines is None else trial.lines,
        "evidence": trial.evidence,
    }
