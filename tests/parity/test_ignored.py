"""`ignore=` is for what has no counterpart: what both sides have is named, and nothing passes."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from tests.nets import torch_of

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def make_reference():
    return torch_of(
        lambda self, x: {"y": self.fc(x), "x": x},
        fc=torch.nn.Linear(4, 4),
        idle=torch.nn.Linear(4, 4),
    )


class Port(nnx.Module):
    def __init__(self, reference, factor):
        for name in ("fc", "idle"):
            theirs, ours = getattr(reference, name), nnx.Linear(4, 4, rngs=nnx.Rngs(0))
            ours.kernel[...] = jnp.asarray(theirs.weight.detach().numpy().T) * factor
            ours.bias[...] = jnp.asarray(theirs.bias.detach().numpy())
            setattr(self, name, ours)

    def __call__(self, x):
        return {"y": self.fc(x), "x": x}


def compared(*ignore, factor=2.0):
    torch.manual_seed(0)
    reference = make_reference().eval()
    return parity.compare(
        reference, Port(reference, factor), (X,), ignore=ignore, check_compiled=False
    )


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


def test_a_module_that_never_ran_is_said_to_be_so_though_it_is_ignored():
    report = compared("idle", factor=1.0)
    assert report.verdict == "WARN"
    assert "called on neither side" in report.notes[0]


def test_what_has_no_counterpart_passes_as_before():
    torch.manual_seed(0)
    reference = make_reference().eval()
    port = Port(reference, 1.0)
    del port.idle
    port.spare = nnx.Param(jnp.ones(3))
    report = parity.compare(reference, port, (X,), ignore=["idle", "spare"], check_compiled=False)
    assert (report.verdict, report.partial) == ("PASS", "")
