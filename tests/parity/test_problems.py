"""No verdict, place or cause hangs on what a message says: kinds decide, texts are for readers."""

import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from parity.core.problems import Problem
from tests.faultzoo.zoo import CASES, nets
from tests.nets import port_of, torch_of
from tests.reports import compare

AFTER = {
    "right": (lambda h: h, lambda h: h),
    "shape": (lambda h: h, lambda h: h[:1]),
    "dtype": (lambda h: h, lambda h: h.astype(jnp.int32)),
    "value": (lambda h: (h, 2), lambda h: (h, 3)),
    "opaque": (lambda h: (h, object()), lambda h: (h, object())),
    "nonfinite": (lambda h: h, lambda h: h.at[0, 0].set(jnp.nan)),
    "port lacks": (lambda h: {"a": h, "b": h}, lambda h: {"a": h}),
    "reference lacks": (lambda h: {"a": h}, lambda h: {"a": h, "b": h}),
    "random": (lambda h: h + torch.rand_like(h), lambda h: h),
    "moved": (lambda h: h[:, [1, 0, 2, 3]], lambda h: h),
}


def small(name):
    torch.manual_seed(0)
    of_torch, of_port = AFTER[name]

    def call(self, x):
        return self.after(self.inner(x))

    reference = torch_of(call, inner=torch.nn.Linear(4, 4), after=of_torch)
    return reference, port_of(reference, call, after=of_port), torch.randn(3, 4)


def unnamed(name):
    """A module that neither side calls, and one that the port has not."""
    reference, port, x = small(name)
    reference.idle, reference.lacking = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    port.idle = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    return reference, port, x


MADE = {
    **{name: lambda name=name: small(name) for name in AFTER},
    "idle": lambda: unnamed("right"),
    **{f"zoo {one.name}": lambda one=one: nets(one, True, 0) for one in CASES[::3]},
}


def found(make):
    """All that a program would read of a report."""
    reference, port, x = make()
    layout = {"*": "channels_first"} if x.ndim == 3 else None
    report = compare(reference, port, (x,), layout=layout)
    coverage = report.coverage
    return (
        report.verdict,
        len(report.notes),
        [(row.path, row.leaf, row.grade, row.verdict, row.one_sided) for row in report.rows],
        [(fault.path, fault.leaf, fault.segment, fault.cause) for fault in report.faults],
        (coverage.matched, coverage.unmatched, list(coverage.declared), coverage.idle),
        (list(coverage.inlined), len(coverage.unmatched_calls)),
        [(line.name, line.nnx_name, str(line.transform), line.cause) for line in report.weights],
    )


@pytest.mark.parametrize("name", MADE)
def test_texts_decide_nothing(name, monkeypatch):
    plain = found(MADE[name])
    keys = property(lambda self: self.kind.name, lambda self, text: None)
    monkeypatch.setattr(Problem, "text", keys, raising=False)
    assert found(MADE[name]) == plain


def test_each_sort_of_end_is_among_them():
    verdicts = {found(MADE[name])[0] for name in ("right", "shape", "port lacks", "random")}
    assert verdicts == {"PASS", "WARN", "FAIL", "UNKNOWN"}


def test_the_messages_are_replaced_indeed(monkeypatch):
    keys = property(lambda self: self.kind.name, lambda self, text: None)
    monkeypatch.setattr(Problem, "text", keys, raising=False)
    reference, port, x = small("shape")
    report = compare(reference, port, (x,))
    assert [row.reason for row in report.rows if row.verdict == "FAIL"] == ["SHAPE"]
    assert report.first_fault.cause == "shape"
