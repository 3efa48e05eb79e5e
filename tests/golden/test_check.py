"""A check against a trace says what a run with the reference says."""

import numpy as np
import pandas as pd
import pytest
import tiny

from parity.golden.check import check_trace
from parity.golden.record import record_pair

ABOUT = ["floor_rel_l2", "R"]
"""A trace has the reference's float64 values to float32 of their difference from the float32."""


@pytest.fixture(scope="module", params=["PAIR", "GLUE", "BIAS"])
def both(request, recorded, ran):
    pair = getattr(tiny, request.param)
    return request.param, check_trace(recorded, pair), ran(pair)


def test_the_figures_are_those_of_a_run(both):
    _, checked, run = both
    assert len(run.table) > 20
    exact = run.table.drop(columns=ABOUT)
    pd.testing.assert_frame_equal(checked.table.drop(columns=ABOUT), exact, check_exact=True)
    for column in ABOUT:
        ours, theirs = checked.table[column].to_numpy(), run.table[column].to_numpy()
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert run.table["R"].notna().sum() > 10


def test_the_verdict_and_the_places_are_those_of_a_run(both):
    name, checked, run = both
    assert checked.verdict == run.verdict == {"PAIR": "PASS"}.get(name, "FAIL")
    places = [[(f.path, f.call, f.case, f.segment, f.calls) for f in r.faults]
              for r in (checked, run)]  # fmt: skip
    assert places[0] == places[1]
    assert checked.coverage == run.coverage
    assert checked.weights == run.weights
    assert checked.unexercised == run.unexercised == (*run.unexercised[:-1], "4 cases only")
    assert checked.facts["uncaptured"] == run.facts["uncaptured"]


def test_what_shows_without_an_experiment_is_said(both):
    name, checked, run = both
    if name == "BIAS":
        assert checked.first_fault.cause == run.first_fault.cause == "weights_value"
        assert "off by" in checked.first_fault.evidence
    if name == "GLUE":
        assert checked.first_fault.path == "block"
        assert "parity run" in checked.first_fault.hint
        assert checked.first_fault.cause in ("glue", run.first_fault.cause)


def test_where_it_was_recorded_is_told_apart_from_where_it_is_checked(both):
    _, checked, run = both
    assert checked.environment["recorded"]["versions"] == run.environment["versions"]
    assert checked.environment["torch_device"] == "cpu"
    assert checked.facts["input"] == run.facts["input"]


def test_of_chosen_modules_only_their_rows_and_the_outermost(tmp_path, ran):
    asked = {"frames": 1, "size": (8, 8), "seed": 3}
    record_pair(tiny.PAIR, tmp_path, **asked, only="block*")
    sound, wrong = (check_trace(tmp_path, pair) for pair in (tiny.PAIR, tiny.BIAS))
    assert set(sound.table["path"]) == {"", "block", "block.norm", "block.conv", "block.act"}
    assert sound.verdict == "PASS"
    assert "only the modules 'block*' were recorded" in sound.unexercised[-1]
    inner = sound.table[sound.table["path"].str.startswith("block.")]
    whole = ran(tiny.PAIR).table
    same = whole[whole["path"].isin(inner["path"])]
    assert list(inner["excl_mae"]) == list(same["excl_mae"])
    # the stem was not recorded: its code is that of the root
    assert [fault.path for fault in wrong.faults] == [""]
