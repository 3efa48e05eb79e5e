import math

import numpy as np
import pytest

from parity.align import PORT_LACKS
from parity.grade import GRADES, MEANINGS, fail_limit, grade, judge
from parity.records import Inclusive, Leaf, LeafMatch, Metrics, Rung
from parity.store import Buffer

NAN = math.nan


def match(dtype="float32", **options):
    leaf = Leaf("", Buffer(b"", 0, (3,), np.dtype(dtype)))
    return LeafMatch(leaf, leaf, **options)


def free(mae, nonfinite=0):
    return Metrics(mae, mae, mae, mae, mae, mae, mae, 0, 1, 1, (0,), nonfinite)


def verdict(kind="Conv2d", mae=1e-7, r=NAN, dtype="float32", free_mae=None, **options):
    inclusive = Inclusive(mae, mae, 0, r=r, bounded=r != r)
    judged = judge(
        kind, match(dtype), free(mae if free_mae is None else free_mae), inclusive, **options
    )
    return judged.verdict, judged.own


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
    assert verdict(r=2.9) == ("PASS", False)
    assert verdict(r=3.1) == ("WARN", False)
    assert verdict(r=10.1) == ("FAIL", True)
    assert verdict("GroupNorm", r=29) == ("WARN", False)
    assert verdict("GroupNorm", r=9) == ("PASS", False)
    assert verdict("GroupNorm", r=31) == ("FAIL", True)
    assert fail_limit("CogVideoXSpatialNorm3D") == 30


def test_without_a_grade_the_scale_of_the_error_does_not_matter():
    assert verdict(mae=1e-2, r=1.0) == ("PASS", False)
    assert verdict(mae=1e-9, r=1e5) == ("FAIL", True)


def test_a_rung_limits_the_inclusive_error():
    rung = Rung("conv", ("Conv2d",), 1e-6)
    assert verdict(mae=9e-7, rung=rung) == ("PASS", False)
    assert verdict(mae=2e-6, rung=rung) == ("FAIL", True)
    assert verdict(mae=9e-7, free_mae=1.0, rung=rung) == ("PASS", False)


def test_a_rung_may_limit_the_free_running_error_which_is_no_fault_of_its_own():
    rung = Rung("encoder", ("E",), 1e-2, free=True)
    assert verdict(mae=1e-7, free_mae=0.5, rung=rung) == ("FAIL", False)


def test_r_limit_replaces_the_others():
    rung = Rung("conv", ("Conv2d",), 1e-6)
    assert verdict(mae=1.0, r=1.9, rung=rung, r_limit=2.0) == ("PASS", False)
    assert verdict(mae=0.0, r=2.1, r_limit=2.0) == ("FAIL", True)


def test_exact_types_must_be_exact():
    assert verdict(mae=0.0, dtype="int32") == ("PASS", False)
    assert verdict(mae=1e-9, dtype="int32") == ("FAIL", True)


def test_finiteness():
    bad = judge("M", match(), free(0), Inclusive(math.inf, math.inf, 2))
    assert (bad.verdict, bad.own) == ("FAIL", True)
    inherited = judge("M", match(), free(math.inf, 2), Inclusive(0, 0, 0))
    assert (inherited.verdict, inherited.own) == ("FAIL", False)


def test_free_running_errors_alone_pass_by_equality_only():
    assert judge("M", match(), free(0.0), None).verdict == "PASS"
    assert judge("M", match(), free(1e-12), None).verdict == "UNKNOWN"
    rung = Rung("conv", ("M",), 1e-6)
    assert judge("M", match(), free(1e-3), None, rung=rung).verdict == "FAIL"


def test_r_that_was_needed_and_could_not_be_measured_is_unknown():
    assert judge("M", match(), free(1e-7), Inclusive(1e-7, 1e-7, 0)).verdict == "UNKNOWN"
    bounded = Inclusive(1e-7, 1e-7, 0, bounded=True)
    assert judge("M", match(), free(1e-7), bounded).verdict == "PASS"
    assert judge("M", match(), free(1e-7), bounded, r_limit=2.0).verdict == "UNKNOWN"


def test_not_observed_is_unknown():
    assert judge("M", match(), None, None).verdict == "UNKNOWN"
    assert judge("M", match(), free(NAN), None).verdict == "UNKNOWN"
    assert judge("M", match(problem=PORT_LACKS), None, None).verdict == "UNKNOWN"
    assert judge("M", match(problem="shape (1,) instead of (2,)"), None, None).own
    assert judge("M", match(problem="layout: ..."), None, None).verdict == "UNKNOWN"
