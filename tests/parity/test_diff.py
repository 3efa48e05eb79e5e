"""What counts as worse between two reports, and what the ratchet refuses."""

import io
import json
import math
from dataclasses import replace

import pytest
from markupsafe import escape
from rich.console import Console

from parity.core.exceptions import InputError, escaped
from parity.core.measurements import Error, Metrics
from parity.core.verdicts import Coverage, Fault, Row
from parity.report import Report
from parity.report.diff import diff
from parity.report.html.page import diff_html
from parity.report.show_diff import show_diff, to_json
from parity.report.table import LISTED

NAN, INF = math.nan, math.inf


def row(path="a", r=NAN, rel=NAN, mae=NAN, free=NAN, dtype="float32", verdict="PASS",
        limited=True):  # fmt: skip
    """Each figure that is not given was not measured."""
    metrics = Metrics(*[free] * 10, (), 0)
    return Row(
        "conv", "c", path, path, "M", 0, "", (2,), dtype, metrics, Error(mae, mae, 0),
        Error(rel, rel, 0, r=r), 1.0, "perfect", verdict, "", 0, -1, limited,
    )  # fmt: skip


def report(*rows, facts=None, environment=None, coverage=None):
    coverage = coverage or Coverage(1, ("a",), {}, (), {}, 1, 1)
    return Report("pair", rows, (), coverage, environment or {}, facts or {})


@pytest.mark.parametrize(
    ("before", "after", "state", "figure", "times"),
    [
        ({"r": 0.1}, {"r": 1.5}, None, "", 1),  # both noise
        ({"r": 1.0}, {"r": 3.0}, "worse", "R", 2),  # of the floor, not of the value
        ({"r": 2.0}, {"r": 2.1}, None, "", 1),
        ({"r": 2.0}, {"r": 5.0}, "worse", "R", 2.5),
        ({"r": 6.0}, {"r": 1.0}, "better", "R", 0.25),
        ({"r": INF}, {"r": INF}, None, "", 1),
        ({"r": 6.0}, {"r": INF}, "worse", "R", INF),
        ({"r": INF}, {"r": 6.0}, "better", "R", 0),
        ({"r": 2.0, "rel": 1e-6}, {"rel": 1e-5}, "worse", "excl_rel_l2", 2**19 / 1e5),
        ({"rel": 1e-7}, {"rel": 1.9e-6}, None, "", 1),
        ({"rel": 2e-3, "dtype": "bfloat16"}, {"rel": 1e-1, "dtype": "bfloat16"}, None, "", 1),
        ({"rel": 0.0, "dtype": "int32"}, {"rel": 1e-9, "dtype": "int32"}, "worse", "excl_rel_l2",
         INF),
        ({"mae": 1e-7, "free": 1.0}, {"mae": 5e-6, "free": 9.0}, "worse", "incl_mae", 5),
        ({"free": 1e-3}, {"mae": 1e-3, "free": 2e-3}, "worse", "mae", 2),
        ({"r": 1.0, "rel": 1e-7}, {"free": 1e-7}, "worse", "R", INF),  # not measured any more
        ({}, {"free": 1.0}, None, "", 1),
        ({"rel": 0.0, "mae": 1e-7}, {"rel": 0.0, "mae": 3e-6}, "worse", "incl_mae", 3),
        ({"r": 9.0, "mae": 1e-5}, {"r": 3.0, "mae": 2e-5}, "worse", "incl_mae", 2),
        ({"r": 9.0, "mae": 1e-5}, {"r": 3.0, "mae": 1e-5}, "better", "R", 1 / 3),
        ({"mae": 1e-5, "limited": False}, {"mae": 2e-5, "limited": False}, None, "", 1),
        ({"r": 1.0}, {"r": 1.0, "verdict": "WARN"}, "worse", "R", 1),
        ({"r": 1.0, "verdict": "FAIL"}, {"r": 1.0, "verdict": "UNKNOWN"}, "better", "R", 1),
        ({"r": 5.0, "verdict": "WARN"}, {"r": 1.0, "verdict": "FAIL"}, "worse", "R", 0.3),
    ],
)  # fmt: skip
def test_a_row(before, after, state, figure, times):
    found = diff(report(row(**before)), report(row(**after)))
    if state is None:
        assert (found.changes, found.same) == ((), 1)
        return
    (change,) = found.changes
    assert (change.state, change.figure) == (state, figure)
    assert change.times == pytest.approx(times)
    assert found.same == 0


def test_the_ratchet_refuses_more_than_the_factor():
    found = diff(report(row(r=2.0)), report(row(r=5.0)))
    assert found.holds(2.5)
    assert not found.holds(2.4)
    assert found.failures(2.4) == found.changes


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        ((row(r=9.0),), (row(r=1.0),), True),
        ((row("a"), row("b")), (row("a"),), False),  # vanished
        ((row("a"),), (row("a"), row("b", r=9.0, verdict="WARN")), False),  # the whole is worse
        ((row("a", verdict="FAIL"),), (row("a", verdict="FAIL"), row("b")), True),
        ((row("a", verdict="FAIL"),), (row("a", verdict="FAIL"), row("b", verdict="FAIL")), False),
        ((row("a"),), (row("a", verdict="UNKNOWN"),), False),
        ((row("a", verdict="FAIL"), row("b")), (row("a"), row("b", verdict="WARN")), False),
    ],
)
def test_what_the_ratchet_refuses_whatever_the_factor(before, after, holds):
    assert diff(report(*before), report(*after)).holds(1e9) is holds


def test_a_module_without_a_counterpart_makes_the_whole_worse():
    missing = Coverage(2, ("a",), {}, ("b",), {}, 1, 1)
    found = diff(report(row()), report(row(), coverage=missing))
    assert (found.changes, found.verdicts) == ((), ("PASS", "FAIL"))
    assert not found.holds(1e9)
    assert "ratchet 2x: FAIL: the verdict on the whole is worse" in printed(found, 2)


def test_the_worst_is_first_and_the_table_ends():
    many = [row(f"m{i}", r=2.0) for i in range(30)]
    worse = [row(f"m{i}", r=10.0 + i) for i in range(29)]
    found = diff(
        report(*many, row("gone"), row("judged")),
        report(*worse, row("judged", verdict="WARN"), row("m29", r=1.0), row("new")),
    )
    order = [change.path for change in found.changes]
    assert order[:3] == ["judged", "m28", "m27"]
    assert order[-3:] == ["gone", "new", "m29"]
    text = printed(found, 3)
    assert "m28 call 0 of c" in text
    assert f"and {len(order) - LISTED} more, which --json and --html list" in text
    assert "rows: 30 worse, 1 vanished, 1 new, 1 better, 0 the same" in text
    assert "ratchet 3x: FAIL: 31 rows, the first judged of c" in text
    document = json.loads(to_json(found, 3), parse_constant=pytest.fail)
    assert [change["path"] for change in document["changes"]] == order
    assert document["rows"] == {"worse": 30, "vanished": 1, "new": 1, "better": 1, "same": 0}
    assert document["holds"] is False
    assert json.loads(to_json(found, None))["holds"] is None


def test_other_inputs_and_another_environment_are_said():
    old = report(
        row(), facts={"input": "clip, frames 0-16", "seconds": 1},
        environment={"seed": 0, "versions": {"jax": "1"}, "commit": "a", "cores": 2},
    )  # fmt: skip
    new = report(
        row(), facts={"input": "noise", "seconds": 2},
        environment={"seed": 1, "versions": {"jax": "2"}, "commit": "b", "cores": 2},
    )  # fmt: skip
    found = diff(old, new)
    assert found.other_inputs == ("input: clip, frames 0-16, then noise", "seed: 0, then 1")
    assert found.other_environment == ("versions.jax: 1, then 2",)
    text = printed(found, None)
    assert "other inputs, so errors cannot be compared: input: clip, frames 0-16, then" in text
    assert "other environment: versions.jax: 1, then 2" in text
    assert diff(old, replace(old, facts={"input": "clip, frames 0-16"})).other_inputs == ()


def test_a_fault_that_was_not_there_is_named():
    one = Fault("a", 0, "", "c", "M", cause="scale")
    old, new = (
        replace(report(row()), faults=(one,)),
        replace(report(row()), faults=(one, replace(one, path="b"))),
    )
    assert diff(old, old).new_faults == ()
    assert diff(old, new).new_faults == ("scale in b (M), call 0 of c",)
    assert "new fault: scale in b (M), call 0 of c" in printed(diff(old, new), None)
    assert json.loads(to_json(diff(old, new), None))["new_faults"] == [
        "scale in b (M), call 0 of c"
    ]
    assert "scale in b (M)" in diff_html(diff(old, new), None)


def test_unrelated_reports_are_refused():
    with pytest.raises(InputError, match="no row in common: that of pair begins with a of c; "):
        diff(report(row("a")), report(row("b")))
    assert not diff(report(), report(row("b"))).changes[0].judged_worse  # nothing, then something


def test_rows_that_nothing_tells_apart():
    with pytest.raises(InputError, match="two rows are named"):
        diff(report(row()), report(row(), row()))


def printed(found, factor):
    console = Console(record=True, width=120, file=io.StringIO())
    show_diff(found, console, factor)
    return console.export_text()


def test_the_page_has_every_change_and_escapes_names():
    evil = "a</td><script>alert(1)</script>\n{{ 7 * 7 }}"
    many = [row(f"m{i}", r=2.0) for i in range(LISTED + 5)]
    worse = [row(f"m{i}", r=10.0, verdict="FAIL") for i in range(LISTED + 5)]
    found = diff(
        report(*many, row(evil, r=1.0), environment={"versions": {evil: "1"}}),
        report(*worse, row(evil, r=NAN), facts={"input": evil}),
    )
    text = diff_html(replace(found, names=(evil, "b")), 2.0)
    assert text.count("<tr>") == 1 + LISTED + 6
    for change in found.changes:
        assert str(escape(escaped(change.where))) in text
    assert text.count("<script") == 0
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri" in text
    assert text.count("{{ 7 * 7 }}") == 4  # its name, a change, input, environment
    assert escape(found.counts) in text
    assert "ratchet 2x: FAIL: 26 rows" in text
    assert "Other inputs, so errors cannot be compared" in text
    assert '<span class="badge PASS">PASS</span> then <span class="badge FAIL">FAIL</span>' in text
    quiet = diff_html(diff(report(row()), report(row())), None)
    assert "<table" not in quiet
    assert "ratchet" not in quiet
