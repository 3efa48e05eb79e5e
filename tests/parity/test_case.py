"""A case whose result the reference has shown before."""

import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.pipeline import run_pair


class Counted(torch.nn.Module):
    """Tells in `ran` of each run; what a module counts in itself a comparison takes back."""

    def __init__(self, ran):
        super().__init__()
        self.tell = ran.append

    def forward(self, x):
        self.tell(x.dtype)
        return torch.tanh(x)


class Tanh(nnx.Module):
    def __call__(self, x):
        return nnx.tanh(x)


def run(again):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    ran = []
    first = parity.Case("call/first", (x,), depth=0, floor=True)
    pair = parity.Pair(
        name="shown",
        make_torch=lambda options, seed: Counted(ran),
        make_nnx=lambda options, reference: Tanh(),
        cases=lambda reference, options, seed: (first, again(x)),
        rungs=(),
    )
    return run_pair(pair), ran.count(torch.float32)


def shown(change=lambda array: array):
    return lambda x: parity.Case(
        "call/again", (x,), depth=0, floor=True,
        returned_from=lambda outputs: change(outputs["call/first"][""]),
    )  # fmt: skip


def test_the_reference_does_not_run_again():
    plain, ran_twice = run(lambda x: parity.Case("call/again", (x,), depth=0, floor=True))
    report, ran_once = run(shown())
    assert ran_once == ran_twice / 2  # of two cases one, and its second run to see what is random
    known, own = report.table, plain.table
    columns = ["mae", "rel_l2", "R", "verdict", "shape"]
    assert known[columns].to_dict() == own[columns].to_dict()
    assert np.isfinite(known["R"]).all()  # against the reference in float64, which did run


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "PASS"), (1.005, "FAIL")])
def test_where_the_port_is_not_what_was_shown_the_reference_runs(monkeypatch, scale, verdict):
    monkeypatch.setattr(Tanh, "__call__", lambda self, x: scale * nnx.tanh(x))
    report, _ = run(shown(lambda array: array * np.float32(1.01)))
    assert list(report.table["verdict"]) == [verdict] * 2
    assert list(report.table["rel_l2"]) == pytest.approx([scale - 1] * 2, abs=1e-6)


def test_calls_inside_cannot_be_shown():
    with pytest.raises(ValueError, match="set depth to 0"):
        parity.Case("call/again", returned_from=lambda outputs: 0)


def test_a_report_says_of_the_input_what_is_known():
    report, _ = run(shown())
    assert report.facts["input"] == "made by the pair"
