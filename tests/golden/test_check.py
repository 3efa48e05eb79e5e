"""A check against a trace says what a run with the reference says."""

import numpy as np
import pandas as pd
import pytest
import tiny

from parity.core.exceptions import InputError
from parity.traces.check import check_trace
from parity.traces.record import record_pair

ABOUT = ["floor_rel_l2", "R"]
"""A trace has the reference's float64 values to float32 of their difference from the float32."""


def agree(checked, run):
    """Both reports say the same of every call, and of the whole."""
    exact = run.table.drop(columns=ABOUT)
    pd.testing.assert_frame_equal(checked.table.drop(columns=ABOUT), exact, check_exact=True)
    for column in ABOUT:  # where one has no figure the other has none
        ours, theirs = checked.table[column], run.table[column]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * (column == "R"))
    # a trace has no code that could run: of several mistakes in one call it shows the first
    first = [[f for f in r.faults if not f.parting] for r in (checked, run)]
    places = [[(f.path, f.call, f.case, f.segment, f.calls) for f in found] for found in first]
    assert places[0] == places[1]
    for what in ("verdict", "coverage", "weights", "unexercised", "partial"):
        assert getattr(checked, what) == getattr(run, what), what


@pytest.fixture(scope="module")
def both(recorded, ran):
    """A port with a wrong bias and a wrong term in a block itself, by both commands."""
    return check_trace(recorded, tiny.WRONG), ran(tiny.WRONG)


def test_it_says_what_a_run_does(both):
    checked, run = both
    agree(checked, run)
    assert set(run.table["verdict"]) == {"PASS", "FAIL"}
    assert run.table["R"].notna().sum() > 10
    assert run.verdict == "FAIL"
    assert [fault.path for fault in run.faults if not fault.parting] == ["stem", "block", ""]
    assert run.unexercised[-1] == "4 cases only"
    assert checked.facts["uncaptured"] == run.facts["uncaptured"]


def test_a_cause_is_told_where_it_shows(both):
    stem, block, _ = both[0].faults
    assert stem.cause == "weights_value"
    assert stem.evidence.startswith("stem.bias: off by")
    assert block.cause == "glue"
    assert "parity run" in block.hint


def test_where_it_was_recorded_is_told_apart_from_where_it_is_checked(both):
    checked, run = both
    assert checked.environment["recorded"]["versions"] == run.environment["versions"]
    assert checked.environment["torch_device"] == "cpu"
    assert checked.facts["input"] == run.facts["input"]


def test_other_versions_are_no_reason_to_refuse_it(trace, resign):
    """They are said: what counts is the format."""
    versions = {"torch": "9.9", "jax": "9.9", "nnx-parity": "9.9"}
    resign(trace, lambda content: content["environment"]["versions"].update(versions))
    report = check_trace(trace, tiny.PAIR)
    assert report.verdict == "PASS"
    assert report.environment["recorded"]["versions"].items() >= versions.items()


def test_a_port_built_otherwise_is_never_judged_better(recorded, ran):
    """The block's float64 values are not those of the trace where R is asked for."""
    checked, run = check_trace(recorded, tiny.INLINED), ran(tiny.INLINED)
    verdicts = set(zip(checked.table["verdict"], run.table["verdict"], strict=True))
    assert ("FAIL", "FAIL") in verdicts
    assert verdicts <= {(same, same) for same in ("PASS", "FAIL")} | {("UNKNOWN", "PASS")}
    unknown = [row for row in checked.rows if row.verdict == "UNKNOWN"]
    assert all(row.path == "block" for row in unknown)
    assert all("with `block.act` apart" in row.reason for row in unknown)
    assert [fault.path for fault in checked.faults] == [fault.path for fault in run.faults]
    assert [fault.path for fault in run.faults] == ["block", ""]


@pytest.mark.parametrize(
    ("choice", "pair", "verdict"),
    [({"only": ["block.*"]}, tiny.WRONG, "WARN"),
     ({"only": ["block"], "depth": 0}, tiny.WRONG, "FAIL"),
     ({"depth": 1}, tiny.PAIR, "WARN")],
    ids=["only", "only and depth", "depth"],
)  # fmt: skip
def test_of_a_part_it_says_what_a_run_of_this_part_does(tmp_path, ran, choice, pair, verdict):
    """At best a WARN: of the other modules it says nothing."""
    record_pair(tiny.PAIR, tmp_path, **tiny.ASKED, **choice)
    checked, run = check_trace(tmp_path, pair), ran(pair, **choice)
    agree(checked, run)
    assert run.partial.startswith("a part only: ")
    assert run.verdict == verdict
    for fact in ("only", "depth"):
        assert checked.facts.get(fact) == run.facts.get(fact)


def test_products_are_emulated_with_all_modules_only(tmp_path):
    record_pair(tiny.PAIR, tmp_path, **tiny.ASKED, only=["head"])
    with pytest.raises(InputError, match="has some modules only, and emulate= is measured on all"):
        check_trace(tmp_path, tiny.PAIR, emulate="bf16")
