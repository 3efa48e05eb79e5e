"""The tree of modules on a terminal, and the progress before it."""

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from parity.core.exceptions import InputError
from parity.report.sections import number
from parity.report.terminal import shown_progress
from parity.report.tree import _bar, show_tree


def lines(report, **options):
    console = Console(record=True, width=100, file=io.StringIO())
    show_tree(report, console, **options)
    return [line.strip() for line in console.export_text().splitlines()]


def line_of(shown, name):
    (found,) = [line for line in shown if line.split("─ ")[-1].startswith(f"{name} ")]
    return found


def test_every_module_has_its_worst_figures(report):
    shown = lines(report)
    assert shown[0] == "TorchNet against NnxNet"
    for name, module in (("stem", "stem"), ("head", "head"), ("<root>", "")):
        rows = [row for row in report.rows if row.path == module]
        worst = max(row.exclusive.rel_l2 for row in rows)
        words = line_of(shown, name).split()
        assert number(worst) in words
        assert words[-1] == rows[0].verdict
    assert line_of(shown, "block").split()[2] == "2"  # calls
    assert sum("─ conv " in line for line in shown) == 2  # each block has one
    assert any(line.startswith("│  ├─ norm") for line in shown)
    assert line_of(shown, "stem").count("━") > line_of(shown, "head").count("━")
    assert "fault: weights_value" in shown
    assert "where    stem (Conv2d), call 0 of __call__" in shown
    assert shown[-1] == "TorchNet against NnxNet: FAIL"


def test_depth_folds_and_says_what_is_folded(report):
    shown = lines(report, depth=1)
    assert not any("─ conv" in line for line in shown)
    assert line_of(shown, "block").endswith("PASS 3 inside: PASS")
    shown = lines(report, depth=0)
    count = len({row.path for row in report.rows}) - 1
    assert line_of(shown, "<root>").endswith(f"PASS {count} inside: FAIL")
    assert any(line.startswith("where    stem") for line in shown)


def test_only_shows_those_modules_and_the_ones_around_them(report):
    shown = lines(report, only="block.n*")
    tree = [line.split("─ ")[-1].split()[0] for line in shown if re.match("<root>|.*[├└]─ ", line)]
    assert tree == ["<root>", "block", "norm"]
    with pytest.raises(InputError, match=r"--only: 'blok' matches no module .* mean 'block'"):
        lines(report, only="blok")


def test_modules_without_a_counterpart_and_reports_without_own_errors(report):
    coverage = replace(report.coverage, unmatched=("block.lost",))
    rows = tuple(replace(row, exclusive=None) for row in report.rows)
    shown = lines(replace(report, rows=rows, coverage=coverage))
    assert any(line.endswith("─ lost") for line in shown)
    assert "unmatched module: block.lost" in shown
    assert any("free rel L2" in line for line in shown)


def test_the_bar_is_logarithmic():
    assert [len(_bar(x)) for x in (0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 1, 5, float("inf"))] == [
        0, 1, 1, 4, 8, 12, 16, 16, 16
    ]  # fmt: skip
    assert _bar(float("nan")) == ""


def test_progress_tells_the_time_left_once_it_knows():
    file = io.StringIO()
    with shown_progress(Console(file=file, force_terminal=True, width=120)) as progress:
        progress.stage("first", 3)
        for _ in range(2):
            time.sleep(0.1)
            progress.advance()
        time.sleep(0.25)
        first = file.getvalue()
        progress.stage("second", 3)
        time.sleep(0.25)
        second = file.getvalue()[len(first) :]
    assert "2/3" in first
    assert re.search("0:00:0[01] left of this stage, 0:00:00 so far", first)
    assert "0/3" in second
    assert "left of this stage" not in second[second.index("second") :]


def test_progress_is_silent_elsewhere():
    for console in (Console(file=io.StringIO()), Console(file=io.StringIO(), quiet=True,
                                                        force_terminal=True)):  # fmt: skip
        with shown_progress(console) as progress:
            progress.stage("first", 3)
            progress.advance()
        assert console.file.getvalue() == ""
        assert "first" in progress.seconds()
