"""Where the finite numbers are left, and where that is no error."""

import json
from pathlib import Path

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.report.as_json import as_json
from parity.report.markdown import as_markdown

SCHEMA = json.loads((Path(parity.__file__).parent / "report/schema.json").read_text())
X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


class TorchMask(torch.nn.Module):
    def forward(self, x):
        return x.masked_fill(torch.ones_like(x).triu(1).bool(), float("-inf"))


class TorchSquare(torch.nn.Module):
    def forward(self, x):
        return x * x


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mask, self.soft, self.square = TorchMask(), torch.nn.Softmax(-1), TorchSquare()

    def forward(self, x):
        return self.square(self.soft(self.mask(x)) * x)


class Function(nnx.Module):
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


class Net(nnx.Module):
    def __init__(self, square=jnp.square):
        self.mask = Function(lambda x: jnp.where(jnp.tri(4) > 0, x, -jnp.inf))
        self.soft, self.square = Function(nnx.softmax), Function(square)

    def __call__(self, x):
        return self.square(self.soft(self.mask(x)) * x)


def compare(port, x=X):
    report = parity.compare(TorchNet(), port, (x,), check_compiled=False)
    jsonschema.validate(json.loads(as_json(report)), SCHEMA)
    return report


def test_a_mask_of_infinities_alike_on_both_sides_is_not_mentioned():
    report = compare(Net())
    assert report.verdict == "PASS"
    assert report.nonfinite == ()
    assert "not finite" not in as_markdown(report)


def test_the_call_where_one_side_leaves_the_finite_numbers_and_from_what():
    report = compare(Net(lambda x: jnp.where(x > 0.1, jnp.nan, x * x)))
    assert report.verdict == "FAIL"
    (one,) = report.nonfinite
    assert (one.side, one.path, one.call, one.inf, one.given) == ("port", "square", 0, 0, 0)
    assert 0 < one.nan < one.size == 16
    assert 0.1 < one.largest < 3
    assert not one.alike
    assert "not finite: the port first in `square` (Function), call 0" in as_markdown(report)


def test_both_sides_alike_are_told_neutrally():
    report = compare(Net(), X * np.float32(3e19))
    assert report.faults == ()
    assert [(one.side, one.path, one.alike) for one in report.nonfinite] == [
        ("reference", "mask", True),
        ("port", "mask", True),
    ]


def test_inputs_that_are_not_finite_already_are_counted():
    x = X.copy()
    x[3, 0] = np.nan
    found = compare(Net(), x).nonfinite
    assert [one.given for one in found] == [1, 1]
    assert found[0].largest == pytest.approx(np.nanmax(np.abs(x)))
