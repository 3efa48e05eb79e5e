"""What one comparison is asked for at once: taps and gradients."""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import parity
from tests.nets import port_of, torch_of
from tests.ports import nnx_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


def torch_gate(self, x):
    gate = parity.tap("gate", torch.sigmoid(self.linear(x)))
    return parity.tap("open", gate * 2) * x


def gate(self, x):
    gate = parity.tap("gate", nnx.sigmoid(self.linear(x)))
    return parity.tap("open", gate * self.factor) * x


def both(self, x):
    return self.second(self.first(x))


def make(factor=2.0):
    torch.manual_seed(0)
    gates = (torch_of(torch_gate, linear=torch.nn.Linear(6, 6)) for _ in range(2))
    reference = torch_of(both, **dict(zip(("first", "second"), gates, strict=True)))
    first = port_of(reference.first, gate, factor=2.0)
    return reference, nnx_of(
        both, first=first, second=port_of(reference.second, gate, factor=factor)
    )


def test_gradients_pass_taps():
    report = compare(*make(), (X,), gradients=True)
    assert report.verdict == "PASS", report.notes
    taps = {row.path for row in report.rows if row.kind == "tap"}
    assert taps == {"first.gate", "first.open", "second.gate", "second.open"}
    gradients = [row for row in report.rows if row.case.endswith("/grad")]
    assert {row.path for row in gradients} == {
        "", "first", "second", "first.linear", "second.linear"
    }  # fmt: skip
    wrong = compare(*make(2.1), (X,), gradients=True)
    assert {fault.path for fault in wrong.faults} <= {"second", "second.open"}
    assert wrong.faults


def test_gradients_of_a_port_that_is_a_function():
    """Of the root alone: a tap has no gradient of its own."""
    reference, _ = make()
    params = {
        name: {"linear": {"kernel": jnp.asarray(one.linear.weight.detach().numpy().T),
                          "bias": jnp.asarray(one.linear.bias.detach().numpy())}}
        for name, one in (("first", reference.first), ("second", reference.second))
    }  # fmt: skip

    def net(params, x):
        for name in ("first", "second"):
            linear = params[name]["linear"]
            y = parity.tap(f"{name}.linear", x @ linear["kernel"] + linear["bias"][None])
            gate = parity.tap(f"{name}.gate", nnx.sigmoid(y))
            x = parity.tap(name, parity.tap(f"{name}.open", gate * 2) * x)
        return x

    report = compare(reference, parity.Functional(net, params), (X,), gradients=True)
    assert report.verdict == "PASS", report.notes
    gradients = {(row.path, row.leaf) for row in report.rows if row.case.endswith("/grad")}
    assert ("", "grad(x)") in gradients
