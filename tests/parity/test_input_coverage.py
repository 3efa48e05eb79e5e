import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.calls import Call, Leaf
from parity.core.store import Buffer
from parity.extras.input_coverage import coverage_of, unexercised
from parity.pipeline import run_pair
from parity.report.as_json import as_json
from parity.report.markdown import as_markdown
from tests.nets import port_of, ported, torch_of
from tests.ports import copy_weights, nnx_of
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


RNG = np.random.default_rng(7)
ROWS = RNG.standard_normal((3, 4)).astype(np.float32)


def both(forward, call):
    return torch_of(lambda self, *given: forward(*given)), nnx_of(lambda self, *given: call(*given))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.ones((3, 4), bool), "input 'given.1' is True everywhere"),
        (np.zeros((3, 4), bool), "input 'given.1' is False everywhere"),
        (np.full((3, 4), 7), "input 'given.1' is 7 everywhere"),
        (np.zeros(1, np.int64), "input 'given.1' is 0 everywhere"),
        (np.array([[0, 1, 0, 1]] * 3), ""),
        (np.full(1, 500), ""),
    ],
)
def test_masks_and_numbers_of_one_value(given, text):
    report = compare(*both(lambda x, y: x * 2, lambda x, y: x * 2), (ROWS, given))
    assert [one for one in report.unexercised if "everywhere" in one] == (
        [f"{text}: that hides mistakes"] if text else []
    )
    assert report.verdict == "PASS"


def test_a_mask_that_one_case_varies():
    reference, port = both(lambda x, y: x * 2, lambda x, y: x * 2)

    def cases(reference, options, seed):
        masks = np.ones((3, 4), bool), ROWS > 0
        return tuple(parity.Case(f"__call__/{n}", (ROWS, masks[n])) for n in options["which"])

    def run(*which):
        pair = parity.Pair(
            "masks", lambda options, seed: reference, lambda options, module: port, cases,
            options=(parity.Option("which", "Cases.", default=which, parse=str),),
        )  # fmt: skip
        return [text for text in run_pair(pair).unexercised if "everywhere" in text]

    assert len(run(0)) == 1
    assert run(0, 1) == run(1) == []


def test_optional_arguments_of_what_is_called():
    def forward(self, x, mask=None, causal=False, scale=1.0, *, bias=None):
        return x * scale

    def call(self, x, mask=None, causal=False, scale=1.0, *, bias=None):
        return x * scale

    def said(**given):
        found = compare(torch_of(forward), nnx_of(call), (ROWS,), torch_kwargs=given).unexercised
        return [text.partition(" was")[0] for text in found if " was " in text]

    assert said() == ["`bias`", "`causal`", "`mask`", "`scale`"]
    assert said(causal=True, mask=ROWS, scale=2.0) == ["`bias`"]
    assert said(causal=False) == ["`bias`", "`causal`", "`mask`", "`scale`"]


def test_weights_of_ones_and_biases_of_zeros():
    reference = torch_of(lambda self, x: self.norm(x), norm=torch.nn.LayerNorm(4))
    text = "weights are `norm.weight` all ones, `norm.bias` all zeros: whether the port uses them"
    port = port_of(reference, lambda self, x: self.norm(x))
    report = compare(reference, port, (ROWS,))
    assert [one.startswith(text) for one in report.unexercised] == [True]
    assert report.verdict == "PASS"
    torch.nn.init.normal_(reference.norm.weight)
    torch.nn.init.normal_(reference.norm.bias)
    port = port_of(reference, lambda self, x: self.norm(x))
    assert compare(reference, port, (ROWS,)).unexercised == ()


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({"mean": torch.zeros(4)}, "weights are `mean` all zeros"),
        ({"scale": torch.ones(4), "mean": torch.randn(4)}, "weights are `scale` all ones"),
        ({"gain": torch.ones(())}, "weights are `gain` all ones"),
        ({"mean": torch.randn(4), "count": torch.ones(4, dtype=torch.int64)}, ""),
    ],
)
def test_buffers_and_numbers_that_change_nothing(held, text):
    reference = torch_of(lambda self, x: x * 2)
    for name, value in held.items():
        reference.register_buffer(name, value)
    port = nnx_of(lambda self, x: x * 2)
    found = compare(reference, port, (ROWS,)).unexercised
    assert [one.partition(":")[0] for one in found] == ([text] if text else [])


LARGE = 1e3 * RNG.standard_normal((5, 6, 7, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("layer", "make", "text"),
    [
        (torch.nn.LayerNorm(4), lambda x: ported(x, epsilon=1e-6),
         "`m`: epsilon is 1e-06, and the reference's 1e-05"),
        (torch.nn.LayerNorm(4), ported, ""),
        (torch.nn.GroupNorm(2, 4), lambda x: ported(x, epsilon=1e-3),
         "`m`: epsilon is 0.001, and the reference's 1e-05"),
        (torch.nn.BatchNorm2d(4), lambda x: batch_norm(0.1),
         "`m`: momentum is 0.9, and the reference's 0.1"),
        (torch.nn.BatchNorm2d(4), lambda x: batch_norm(0.9), ""),
        (torch.nn.LeakyReLU(0.1), lambda x: leaky(0.2),
         "`m`: negative slope is 0.2, and the reference's 0.1"),
        (torch.nn.LeakyReLU(0.1), lambda x: leaky(0.1), ""),
        (torch.nn.Conv2d(4, 4, 1, dilation=2), ported,
         "`m`: dilation is 1, and the reference's 2"),
        (torch.nn.Conv2d(4, 4, 3, padding=(1, 2), stride=2), ported, ""),
    ],
)  # fmt: skip
def test_constants_are_compared_as_they_are_stated(layer, make, text):
    reference = torch_of(lambda self, x: self.m(x), m=layer).eval()
    images = np.abs(LARGE) if isinstance(layer, torch.nn.LeakyReLU) else LARGE
    rows = images[0, 0] if isinstance(layer, torch.nn.LayerNorm) else images.transpose(0, 3, 1, 2)
    report = compare(reference, nnx_of(lambda self, x: self.m(x), m=make(layer)), (rows,))
    assert [one for one in report.notes if "the reference's" in one] == ([text] if text else [])
    assert report.verdict == ("WARN" if text else "PASS")


def test_a_class_that_pads_by_itself_states_no_padding():
    class Causal(torch.nn.Conv1d):
        def forward(self, x):
            return super().forward(torch.nn.functional.pad(x, (2, 0)))

    reference = torch_of(lambda self, x: self.m(x), m=Causal(4, 4, 3))
    port = nnx.Conv(4, 4, (3,), padding=[(2, 0)], rngs=nnx.Rngs(0))
    right = nnx_of(lambda self, x: self.m(x), m=copy_weights(reference.m, port))
    report = compare(reference, right, (LARGE[0].transpose(0, 2, 1),))
    assert (report.verdict, report.notes) == ("PASS", ())


def batch_norm(momentum):
    return nnx.BatchNorm(
        4, momentum=momentum, epsilon=1e-5, use_running_average=True, rngs=nnx.Rngs(0)
    )


def leaky(slope):
    return nnx_of(lambda self, x: nnx.leaky_relu(x, self.negative_slope), negative_slope=slope)
