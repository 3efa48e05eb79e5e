"""The cause of one mistake in attention, whose reference is written out or fused."""

import pytest

from tests.lines import attention
from tests.lines.attention import marked, nets
from tests.lines.drawn_attention import MISTAKES, drawn
from tests.reports import compare

CAUSES = {
    "scale": ("attention_scale", "0.3535"),
    "causal": ("attention_mask", "leaving out the mask"),
    "diagonal": ("attention_mask", "moved by 1 along its columns"),
    "exchanged": ("attention_heads", "queries and keys exchanged"),
    "groups": ("attention_heads", ""),
    "off by one": ("rotary", "positions one"),
    "pairs": ("rotary", "paired with their neighbours"),
    "axis": ("norm_axes", "softmax over axis 2"),
    "bfloat16": ("dtype", "scores in bfloat16"),
}


@pytest.mark.parametrize(
    "fused", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["matmul", "fused"]
)
@pytest.mark.parametrize("mistake", CAUSES)
def test_the_cause_of_a_mistake(mistake, fused):
    reference, port, x = nets(fused, mistake)
    (fault,) = compare(reference, port, (x,)).faults
    cause, words = CAUSES[mistake]
    assert fault.cause == cause, fault.evidence
    assert words in fault.evidence
    lines = [line.line for line in fault.lines.port]
    assert any(abs(x - y) <= 1 for x in marked(attention.__file__, mistake) for y in lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11))
def test_the_cause_in_attention_that_is_drawn(seed):
    mistake = list(MISTAKES)[seed]
    reference, port, x = drawn(seed, mistake)
    fault = compare(reference, port, (x,)).first_fault
    assert fault.cause == MISTAKES[mistake], fault.evidence


@pytest.mark.parametrize("seed", range(4))
def test_right_attention_that_is_drawn_passes(seed):
    reference, port, x = drawn(seed)
    assert compare(reference, port, (x,)).verdict == "PASS"
