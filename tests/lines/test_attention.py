from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from parity.lines.whole_programs import align
from tests.lines import attention
from tests.lines.attention import MISTAKES, ONE, marked, nets
from tests.reports import compare


def numbers(lines):
    return [line.line for line in lines]


def near(wanted, found):
    return any(abs(x - y) <= 1 for x in wanted for y in found)


@pytest.mark.parametrize("fused", [False, True], ids=["matmul", "fused"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_line_of_a_mistake_is_the_first(mistake, fused):
    reference, port, x = nets(fused, mistake)
    (found,) = align(reference, port, (x,), (x,)).partings
    assert near(marked(attention.__file__, mistake), numbers(found.port[:1]))
    assert found.reference[0].text.strip() in attention_source()


def attention_source():
    return Path(attention.__file__).read_text().partition("class Port")[0]


@pytest.mark.parametrize("fused", [False, True], ids=["matmul", "fused"])
def test_right_programs_agree(fused):
    reference, port, x = nets(fused)
    found = align(reference, port, (x,), (x,))
    assert found.partings == ()
    assert {step.state for step in (*found.port, *found.reference)} == {"agrees"}


def test_positions_shifted_on_both_sides_of_the_scores_are_no_mistake():
    reference, port, x = nets(False, "off by one")
    (found,) = align(reference, port, (x,), (x,)).partings
    assert near(marked(attention.__file__, "off by one"), numbers(found.port))


def pairs_of_mistakes():
    both = [pair for pair in combinations(MISTAKES, 2) if pair not in ONE]
    return [both[i] for i in np.random.default_rng(0).permutation(len(both))[:10]]


@pytest.mark.parametrize("mistakes", pairs_of_mistakes(), ids="+".join)
def test_two_mistakes_are_both_found(mistakes):
    reference, port, x = nets(False, *mistakes)
    found = align(reference, port, (x,), (x,)).partings
    lines = [line.line for one in found for line in one.port]
    assert all(near(marked(attention.__file__, mistake), lines) for mistake in mistakes)


def test_two_mistakes_in_one_call_are_two_faults():
    reference, port, x = nets(False, "off by one", "axis")
    report = compare(reference, port, (x,))
    assert [(fault.path, fault.parting) for fault in report.faults] == [("", 0), ("", 1)]
    for fault, mistake in zip(report.faults, ("off by one", "axis"), strict=True):
        assert near(marked(attention.__file__, mistake), numbers(fault.lines.port))
