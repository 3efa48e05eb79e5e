"""Where the finite numbers are left, and where that is no error."""

import json

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.report.as_json import as_json
from parity.report.markdown import as_markdown
from tests.nets import torch_of
from tests.ports import nnx_of
from tests.reports import SCHEMA

X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def torch_net():
    return torch_of(
        lambda self, x: self.square(self.soft(self.mask(x)) * x),
        mask=torch_of(lambda _, x: x.masked_fill(torch.ones_like(x).triu(1).bool(), float("-inf"))),
        soft=torch.nn.Softmax(-1),
        square=torch_of(lambda _, x: x * x),
    )


def make_function(function):
    return nnx_of(lambda self, x: self.function(x), function=function)


def net(square=jnp.square):
    return nnx_of(
        lambda self, x: self.square(self.soft(self.mask(x)) * x),
        mask=make_function(lambda x: jnp.where(jnp.tri(4) > 0, x, -jnp.inf)),
        soft=make_function(nnx.softmax),
        square=make_function(square),
    )


def compare(port, x=X):
    report = parity.compare(torch_net(), port, (x,), check_compiled=False)
    jsonschema.validate(json.loads(as_json(report)), SCHEMA)
    return report


def test_a_mask_of_infinities_alike_on_both_sides_is_not_mentioned():
    report = compare(net())
    assert report.verdict == "PASS"
    assert report.nonfinite == ()
    assert "not finite" not in as_markdown(report)


def test_the_call_where_one_side_leaves_the_finite_numbers_and_from_what():
    report = compare(net(lambda x: jnp.where(x > 0.1, jnp.nan, x * x)))
    assert report.verdict == "FAIL"
    (one,) = report.nonfinite
    assert (one.side, one.path, one.call, one.inf, one.given) == ("port", "square", 0, 0, 0)
    assert 0 < one.nan < one.size == 16
    assert 0.1 < one.largest < 3
    assert not one.alike
    assert "not finite: the port first in `square` (Net), call 0" in as_markdown(report)


def test_both_sides_alike_are_told_neutrally():
    report = compare(net(), X * np.float32(3e19))
    assert report.faults == ()
    assert [(one.side, one.path, one.alike) for one in report.nonfinite] == [
        ("reference", "mask", True),
        ("port", "mask", True),
    ]


def test_inputs_that_are_not_finite_already_are_counted():
    x = X.copy()
    x[3, 0] = np.nan
    found = compare(net(), x).nonfinite
    assert [one.given for one in found] == [1, 1]
    assert found[0].largest == pytest.approx(np.nanmax(np.abs(x)))
