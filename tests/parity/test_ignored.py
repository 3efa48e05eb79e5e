"""`ignore=` is for what has no counterpart: what both sides have is named, and nothing passes."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from tests.nets import port_of, torch_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def make_reference():
    return torch_of(
        lambda self, x: {"y": self.fc(x), "x": x},
        fc=torch.nn.Linear(4, 4),
        idle=torch.nn.Linear(4, 4),
    )


def make_port(reference, factor):
    port = port_of(reference, lambda self, x: {"y": self.fc(x), "x": x})
    for layer in (port.fc, port.idle):
        layer.kernel[...] = layer.kernel[...] * factor
    return port


def compared(*ignore, factor=2.0):
    torch.manual_seed(0)
    reference = make_reference().eval()
    return compare(reference, make_port(reference, factor), (X,), ignore=ignore)


def test_a_wrong_module_that_is_ignored_does_not_pass():
    report = compared("fc", "idle")
    assert report.verdict == "WARN"
    assert "ignore= is for what has no counterpart, and both sides have `fc`" in report.partial
    assert "fc" not in report.coverage.matched
    row = next(row for row in report.rows if row.leaf == "y")
    assert (row.path, row.verdict) == ("", "WARN")
    assert row.reason == "judged without `fc`, which ignore= leaves out though both sides have it"


@pytest.mark.parametrize(
    ("ignore", "named"),
    [("", "<root>"), ("#y", "<root>#y"), ("fc", "fc"), ("fc.weight", "fc.weight")],
)
def test_what_both_sides_have_is_named(ignore, named):
    report = compared(ignore)
    assert f"`{named}`" in report.partial
    assert report.verdict != "PASS"


def test_the_weights_of_an_ignored_module_are_compared_all_the_same():
    note = compared("fc", "idle").notes[-1]
    found = [name for name in ("fc.weight", "fc.bias", "idle.weight") if name in note]
    assert "weights are not the reference's" in note
    assert found == ["fc.weight", "idle.weight"]  # kernels alone are multiplied


def test_a_module_that_never_ran_is_said_to_be_so_though_it_is_ignored():
    report = compared("idle", factor=1.0)
    assert report.verdict == "WARN"
    assert "called on neither side" in report.notes[0]


def test_what_has_no_counterpart_passes_as_before():
    torch.manual_seed(0)
    reference = make_reference().eval()
    port = make_port(reference, 1.0)
    del port.idle
    port.spare = nnx.Param(jnp.ones(3))
    report = compare(reference, port, (X,), ignore=["idle", "spare"])
    assert (report.verdict, report.partial) == ("PASS", "")
