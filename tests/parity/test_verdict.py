import math
from dataclasses import replace

import numpy as np
import pytest

from parity.core.calls import Leaf, LeafMatch
from parity.core.measurements import NOT_EXACT, ChildInput, Error, Metrics
from parity.core.pair import Rung
from parity.core.problems import PORT_LACKS, not_measured, other_shape
from parity.core.store import Buffer
from parity.judge.verdict import (
    GRADES,
    MEANINGS,
    Errors,
    downgraded,
    fail_limit,
    grade,
    judge,
)

NAN = math.nan


def match(dtype="float32", **options):
    leaf = Leaf("", Buffer(b"", (3,), np.dtype(dtype)))
    return LeafMatch(leaf, leaf, **options)


def free(mae, nonfinite=0):
    return Metrics(mae, mae, mae, mae, mae, mae, mae, 0, 1, 1, (0,), nonfinite)


def exclusive(mae=1e-7, r=NAN, **options):
    return Error(mae, mae, 0, r=r, **{"bounded": r != r} | options)


inclusive = exclusive


def verdict(kind="Conv2d", mae=1e-7, r=NAN, dtype="float32", free_mae=None, **options):
    """Of a call without others inside."""
    errors = Errors(
        free(mae if free_mae is None else free_mae), inclusive(mae, r), exclusive(mae, r)
    )
    judged = judge(kind, match(dtype), errors, **options)
    return judged.verdict, judged.blame


def container(own, around, child_inputs=()):
    errors = Errors(free(1.0), around, own, child_inputs, container=True)
    judged = judge("Block", match(), errors)
    return judged.verdict, judged.blame


@pytest.mark.parametrize(
    ("mae", "name"),
    [(0, "perfect"), (9.9e-7, "perfect"), (1e-6, "excellent"), (1e-4, "good"), (1e-3, "warning"),
     (8.8e-4, "good"), (0.3, "severe"), (1e-2, "attention"), (0.1, "severe"), (NAN, "severe"),
     (math.inf, "severe")],
)  # fmt: skip
def test_grades_include_their_lower_edge(mae, name):
    assert grade(mae) == name


def test_every_grade_has_a_meaning():
    assert set(MEANINGS) == {name for name, _ in GRADES}


def test_r_decides_by_kind():
    assert verdict(r=2.9) == ("PASS", "")
    assert verdict(r=3.1) == ("WARN", "")
    assert verdict(r=10.1) == ("FAIL", "exclusive")
    assert verdict("GroupNorm", r=29) == ("WARN", "")
    assert verdict("GroupNorm", r=9) == ("PASS", "")
    assert verdict("GroupNorm", r=31) == ("FAIL", "exclusive")
    assert fail_limit("CogVideoXSpatialNorm3D") == 30


def test_without_a_grade_the_scale_of_the_error_does_not_matter():
    assert verdict(mae=1e-2, r=1.0) == ("PASS", "")
    assert verdict(mae=1e-9, r=1e5) == ("FAIL", "exclusive")


def test_moved_data_must_be_the_same():
    assert judge("M", match(), Errors(exclusive=exclusive(0.0, 0.0, moved=True))).verdict == "PASS"
    changed = judge("M", match(), Errors(exclusive=exclusive(1e-9, 0.01, moved=True)))
    assert (changed.verdict, changed.reason) == ("FAIL", NOT_EXACT)


def test_a_container_is_at_fault_if_what_it_returns_is_wrong_too():
    assert container(exclusive(r=1e3), inclusive(r=1e3)) == ("FAIL", "exclusive")
    assert container(exclusive(r=1e3), inclusive(r=2.0)) == ("WARN", "")
    child_inputs = (ChildInput(5, 3, "a.b", "x", "", exclusive(r=1e3)),)
    assert container(exclusive(r=1.0), inclusive(r=1e3), child_inputs) == ("FAIL", "exclusive")
    assert container(exclusive(r=1.0), inclusive(r=2.0), child_inputs) == ("WARN", "")


def test_r_is_of_the_child_input_where_that_fails_too():
    passed = (ChildInput(5, 3, "a.b", "x", "", exclusive(r=77.0)),)
    for own, said in ((exclusive(r=1e6), "R 77 > 10 in `x` of `a.b`"), (exclusive(r=1.0), "R 77")):
        judged = judge("Block", match(), Errors(free(1.0), None, own, passed, container=True))
        assert judged.reason.startswith(said)
    alone = judge("Block", match(), Errors(free(1.0), None, exclusive(r=1e6), container=True))
    assert alone.reason == "R 1e+06 > 10"


def test_a_container_that_is_right_by_itself_and_wrong_inside():
    assert container(exclusive(r=1.0), inclusive(r=1e3)) == ("FAIL", "inclusive")
    assert container(exclusive(r=1.0), inclusive()) == ("PASS", "")


def test_a_rung_limits_the_inclusive_error():
    rung = Rung("conv", ("Conv2d",), 1e-6)
    assert verdict(mae=9e-7, rung=rung) == ("PASS", "")
    assert verdict(mae=2e-6, rung=rung) == ("FAIL", "inclusive")
    assert verdict(mae=2e-6, r=1e3, rung=rung) == ("FAIL", "exclusive")
    assert verdict(mae=9e-7, free_mae=1.0, rung=rung) == ("PASS", "")


def test_a_rungs_limit_grows_with_the_size_of_the_outputs():
    rung = Rung("conv", ("M",), 1e-6, free=True)
    figures = (inclusive(2e-6, 1.0), exclusive(2e-6, 1.0))
    for size, wanted in ((0.01, "FAIL"), (1.0, "FAIL"), (16.0, "PASS"), (NAN, "FAIL")):
        errors = Errors(replace(free(2e-6), ref_rms=size), *figures)
        assert judge("M", match(), errors, rung=rung).verdict == wanted
    alone = Errors(replace(free(2e-5), ref_rms=16.0), *figures)
    judged = judge("M", match(), alone, rung=rung)
    assert judged.reason == "free-running MAE 2.0e-05 > 1e-06 x size 16, rung conv"


def test_a_rung_is_not_held_by_what_could_not_be_measured():
    rung = Rung("conv", ("M",), 1e-6)
    unmade = {"problem": not_measured("not measured: no input has a counterpart")}
    errors = Errors(None, Error(NAN, NAN, 0, **unmade), Error(NAN, NAN, 0, **unmade))
    judged = judge("M", match(), errors, rung=rung)
    assert (judged.verdict, judged.reason) == ("UNKNOWN", unmade["problem"].text)
    behind = Errors(free(0.5), Error(NAN, NAN, 0, **unmade), Error(NAN, NAN, 0, **unmade))
    judged = judge("M", match(), behind, rung=rung)  # what came before may be at fault
    assert (judged.verdict, judged.blame) == ("UNKNOWN", "")
    known = Errors(free(2e-6), Error(NAN, NAN, 0, **unmade), exclusive(2e-6, 1.0))
    assert judge("M", match(), known, rung=rung).verdict == "FAIL"
    assert judge("M", match(), known).verdict == "PASS"
    elsewhere = Errors(free(2e-6), errors.inclusive, errors.exclusive)
    judged = judge("M", match(), elsewhere, rung=rung)  # behind a fault: whose it is, is not known
    assert (judged.verdict, judged.blame) == ("UNKNOWN", "")
    lost = Errors(free(math.inf, 2), Error(math.inf, math.inf, 2), exclusive(0))
    assert judge("M", match(), lost, rung=rung).verdict == "FAIL"


def test_a_rung_may_limit_the_free_running_error_which_is_no_fault_of_its_own():
    rung = Rung("encoder", ("E",), 1e-2, free=True)
    assert verdict(mae=1e-7, free_mae=0.5, rung=rung) == ("FAIL", "")


def test_r_limit_replaces_the_others():
    rung = Rung("conv", ("Conv2d",), 1e-6)
    assert verdict(mae=1.0, r=1.9, rung=rung, r_limit=2.0) == ("PASS", "")
    assert verdict(mae=0.0, r=2.1, r_limit=2.0) == ("FAIL", "exclusive")


def test_exact_types_must_be_exact():
    assert verdict(mae=0.0, dtype="int32") == ("PASS", "")
    assert verdict(mae=1e-9, dtype="int32") == ("FAIL", "exclusive")


def test_finiteness():
    own = Error(math.inf, math.inf, 2)
    bad = judge("M", match(), Errors(free(0), Error(math.inf, math.inf, 2), own))
    assert (bad.verdict, bad.blame) == ("FAIL", "exclusive")
    inherited = judge("M", match(), Errors(free(math.inf, 2), inclusive(0), exclusive(0)))
    assert (inherited.verdict, inherited.blame) == ("FAIL", "")


def test_free_running_errors_alone_pass_by_equality_only():
    assert judge("M", match(), Errors(free(0.0))).verdict == "PASS"
    assert judge("M", match(), Errors(free(1e-12))).verdict == "UNKNOWN"
    rung = Rung("conv", ("M",), 1e-6)
    assert judge("M", match(), Errors(free(1e-3)), rung=rung).verdict == "FAIL"


def test_r_that_was_needed_and_could_not_be_measured_is_unknown():
    unmeasured = Errors(free(1e-7), inclusive(), exclusive(bounded=False))
    assert judge("M", match(), unmeasured).verdict == "UNKNOWN"
    near = Errors(free(1e-7), inclusive(), exclusive())
    assert judge("M", match(), near).verdict == "PASS"
    assert judge("M", match(), near, r_limit=2.0).verdict == "UNKNOWN"


def test_not_observed_is_unknown():
    assert judge("M", match(), Errors()).verdict == "UNKNOWN"
    assert judge("M", match(), Errors(free(NAN))).verdict == "UNKNOWN"
    assert judge("M", match(), Errors(exclusive=exclusive(NAN))).verdict == "UNKNOWN"
    why = Errors(free(1e-7), exclusive=Error.unknown("not measured: because"))
    assert judge("M", match(), why).reason == "not measured: because"
    assert judge("M", match(problem=PORT_LACKS), Errors()).verdict == "UNKNOWN"
    shape = judge("M", match(problem=other_shape((2,), (1,))), Errors())
    assert (shape.verdict, shape.blame) == ("FAIL", "exclusive")


def test_a_rung_limits_the_own_error_of_what_has_no_inclusive_one():
    rung = Rung("attention", ("Attention",), 1e-4)
    errors = Errors(free(1.0), None, exclusive())
    assert judge("Attention", match(), errors, rung=rung).verdict == "PASS"
    errors = Errors(free(1.0), None, exclusive(mae=1e-3, r=2.0))
    judged = judge("Attention", match(), errors, rung=rung)
    assert (judged.verdict, judged.blame) == ("FAIL", "inclusive")


def test_a_tap_is_excused_by_what_the_call_around_it_returns():
    failed = judge("tap", match(), Errors(free(1.0), None, exclusive(r=50.0)))
    assert (failed.verdict, failed.blame) == ("FAIL", "exclusive")
    held = downgraded(failed, [inclusive(r=2.0), inclusive(mae=0.0)], 10)
    assert (held.verdict, held.blame) == ("WARN", "")
    for around in ([], [inclusive(r=20.0)], [inclusive()], [inclusive(r=2.0), inclusive(r=NAN)]):
        assert downgraded(failed, around, 10) == failed
    assert downgraded(failed, [inclusive(r=2.0, floor_rel_l2=0.5)], 10) == failed
