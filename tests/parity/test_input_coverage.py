import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.calls import Call, Leaf
from parity.core.store import Buffer
from parity.extras.input_coverage import coverage_of, unexercised
from parity.report.as_json import as_json
from parity.report.markdown import as_markdown
from tests.nets import port_of, torch_of
from tests.reports import compare


def array(*shape, name="x", moved=True, dtype="float32"):
    return Leaf(name, Buffer(b"", shape, np.dtype(dtype)), moved=moved)


def call(*inputs, path="", kind="Net", parent=-1):
    return Call(path, kind, "__call__", 0, 0, parent, inputs, ())


def gaps(*cases):
    return unexercised([coverage_of(calls, {"Block": ["mask"]}) for calls in cases])


BATCH = "a batch of 1 only: what mixes up the items of a batch does not show"


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (array(2, 5, 6, 7, 3), ()),
        (array(1, 5, 6, 7, 3), (BATCH,)),
        (array(2, 1, 6, 7, 3), ("1 frame only: nothing along that axis shows",)),
        (array(2, 6, 6, 3), ("square images only (6x6): height and width swapped do not show",)),
        (array(2, 1, 1, 3), ("1 row only: nothing along that axis shows",
                             "1 column only: nothing along that axis shows")),
        (array(2, 3), ()),
        (array(2, 4, 8, 8, moved=False), ()),  # which axis is which is not known
        (array(1, 4, 8, 8, moved=False), (BATCH,)),
        (array(3, moved=False), ()),
    ],
)  # fmt: skip
def test_sizes_of_one_case(leaf, expected):
    found = [gap for gap in gaps([call(leaf)]) if "numbers of" not in gap]
    assert tuple(found) == expected


def test_sizes_of_one_parity():
    odd, even = call(array(2, 9, 6, 7, 3)), call(array(2, 8, 7, 6, 3))
    (found,) = gaps([odd])
    expected = "only even numbers of rows (6), only odd numbers of frames (9) and columns (7): "
    assert found.startswith(expected)
    assert gaps([odd], [even]) == ()
    tokens = call(array(2, 12, moved=False, dtype="int64"))
    assert gaps([tokens])[0].startswith("only even numbers of positions (12): ")


def test_what_one_case_exercised_is_not_said():
    one, two = call(array(1, 8, 8, 3)), call(array(2, 8, 9, 3))
    assert len(gaps([one])) == 3
    (left,) = gaps([one], [two])
    assert left.startswith("only even numbers of rows (8): ")


def test_a_module_called_by_itself_does_not_exercise_the_whole():
    whole, inner = call(array(1, 9, 6, 7, 3)), call(array(9, 6, 7, 3), path="a.conv")
    assert BATCH in gaps([whole], [inner])
    assert BATCH not in gaps([inner])


def test_arguments_that_were_none_in_every_call():
    none, past = Leaf("cache", value=None), array(2, 2, name="cache.conv")
    first = call(array(2, 3), none, Leaf("scale", value=1.0), kind="Conv")
    whole = call(array(2, 3))
    assert gaps([first, whole]) == ("`cache` was None in every call of Conv",)
    second = call(array(2, 3), past, kind="Conv")
    assert gaps([first, second, whole]) == ()
    assert gaps([first, whole], [second, whole]) == ()
    other = call(array(2, 3), past, kind="Norm")
    assert gaps([first, other, whole]) == ("`cache` was None in every call of Conv",)


def test_arguments_that_were_never_given():
    inner, whole = call(array(2, 3), kind="Block", parent=1), call(array(2, 3))
    assert gaps([inner, whole]) == ("`mask` was None in every call of Block",)
    masked = call(array(2, 3), array(2, 3, name="mask"), kind="Block", parent=1)
    assert gaps([masked, inner, whole]) == ()
    assert gaps([inner]) != gaps([call(array(2, 3), kind="Block")]) == ()


def test_it_is_reported_and_takes_nothing_from_the_verdict(pair, image):
    report = parity.compare(*pair, (image[:1],))
    assert report.verdict == "PASS"
    assert report.unexercised[0] == BATCH
    assert f"## What the inputs did not exercise\n\n- {BATCH}" in as_markdown(report)
    assert '"unexercised": [\n  "a batch of 1 only' in as_json(report)
    assert BATCH not in parity.compare(*pair, (image,)).unexercised


@pytest.mark.parametrize(
    ("zero", "note"),
    [
        (["gate"], "`gate` is all zeros: what it multiplies or adds was not tested"),
        (["gate", "fc.weight"],
         "`gate`, `fc.weight` are all zeros: what they multiply or add was not tested"),
        (["fc.bias"], ""),  # as many models start
        (["idle.weight"], ""),  # a note says that it never ran
    ],
)  # fmt: skip
def test_weights_of_zeros(zero, note):
    def make_reference():
        torch.manual_seed(0)
        return torch_of(
            lambda self, x: x + self.gate * self.fc(x),
            fc=torch.nn.Linear(3, 3),
            idle=torch.nn.Linear(3, 3),
            gate=torch.nn.Parameter(torch.ones(3)),
        )

    reference = make_reference().eval()
    for name in zero:
        torch.nn.init.zeros_(reference.get_parameter(name))
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    gate = nnx.Param(reference.gate.detach().numpy().copy())
    port = port_of(reference, lambda self, x: x + self.gate[...][None] * self.fc(x), gate=gate)
    report = compare(reference, port, (x,))
    assert [text for text in report.notes if "zeros" in text] == ([note] if note else [])
    assert report.verdict == "WARN"
