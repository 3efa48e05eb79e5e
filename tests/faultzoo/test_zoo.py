import pytest

from tests.faultzoo.zoo import CASES, nets
from tests.reports import compare


def find(one, wrong, seed):
    reference, port, x = nets(one, wrong, seed)
    layout = {"*": "channels_first"} if x.ndim == 3 else None
    return compare(reference, port, (x,), layout=layout)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_place_and_cause(one):
    report = find(one, True, 0)
    assert report.verdict == "FAIL"
    assert [fault.path for fault in report.faults] == [one.path]
    assert report.first_fault.cause == one.cause, report.first_fault.evidence
    assert report.first_fault.hint


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_no_false_alarm(one):
    report = find(one, False, 0)
    assert report.faults == ()
    assert report.verdict == "PASS"


def test_there_are_enough_kinds():
    assert len(CASES) >= 15
    assert len({one.cause for one in CASES}) >= 12
