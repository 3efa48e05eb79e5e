"""No lie about networks that nobody chose: right ports pass, wrong ones do not."""

import pytest

from tests.drawn.nets import outcome


def check_right(seeds, unsure):
    """Nothing that is right fails, and at most so many are not sure."""
    found = [outcome(seed, mistake=False) for seed in seeds]
    others = [one for one in found if one.verdict != "PASS"]
    assert len(others) <= unsure, others
    assert {one.verdict for one in others} <= {"WARN", "UNKNOWN"}, others


def check_wrong(seeds):
    """Nothing that is wrong passes, and of 97 in a hundred every fault is at the mistake."""
    found = [outcome(seed, mistake=True) for seed in seeds]
    misplaced = [one for one in found if not (one.placed or one.inlined)]
    assert not [one for one in found if one.verdict == "PASS"]
    assert len(misplaced) <= 0.03 * len(found), misplaced


def test_right_ports_pass():
    check_right(range(25), unsure=0)


def test_wrong_ports_fail_where_they_are_wrong():
    check_wrong(range(25))


@pytest.mark.slow
def test_right_ports_pass_500():
    check_right(range(500), unsure=2)


@pytest.mark.slow
def test_wrong_ports_fail_where_they_are_wrong_500():
    check_wrong(range(500))
