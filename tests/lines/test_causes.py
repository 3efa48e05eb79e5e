"""Causes of several mistakes in one forward, of one mistake in a loop, and what they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from tests.lines import attention
from tests.nets import port_of, ported, randomise, torch_of
from tests.ports import nnx_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)


PAIRS = (
    {"groups": "attention_heads", "axis": "norm_axes"},
    {"value bias": "scale_or_offset", "axis": "norm_axes"},
    {"bfloat16": "dtype", "scale": "attention_scale"},
    {"pairs": "rotary", "exchanged": "attention_heads"},
    {"groups": "attention_heads", "exchanged": "attention_heads"},
    {"exchanged": "attention_heads", "diagonal": "attention_mask"},
    {"bfloat16": "dtype", "diagonal": "attention_mask"},
    {"value bias": "scale_or_offset", "groups": "attention_heads"},
)


@pytest.mark.parametrize(
    "mistakes",
    [*PAIRS[:3], *(pytest.param(pair, marks=pytest.mark.slow) for pair in PAIRS[3:])],
    ids=[" and ".join(pair) for pair in PAIRS],
)
def test_each_of_two_mistakes_has_its_own_line_and_cause(mistakes):
    """In the order of execution."""
    reference, port, x = attention.nets(False, *mistakes)
    found = compare(reference, port, (x,)).faults
    assert [fault.parting for fault in found] == [0, 1]
    for fault, (name, cause) in zip(found, mistakes.items(), strict=True):
        marked = attention.marked(attention.__file__, name)
        assert any(abs(fault.lines.port[0].line - line) <= 1 for line in marked)
        assert fault.cause == cause
        assert "off by" in fault.magnitude


def test_what_no_change_explains_is_a_fault_of_its_own_before_another():
    """The sum is halved, and later an offset is another."""
    parts = {name: torch.nn.Linear(6, 6) for name in "abc"}

    def call(self, x):
        h = torch.tanh(self.a(x)) + x
        return self.c(torch.sigmoid(self.b(h)) + 0.3 + h)

    def port_call(self, x):
        h = 0.5 * jnp.tanh(self.a(x)) + x
        return self.c(jax.nn.sigmoid(self.b(h)) + 0.2 + h)

    reference = randomise(torch_of(call, **parts))
    port = nnx_of(port_call, **{name: ported(getattr(reference, name)) for name in "abc"})
    faults = compare(reference, port, (X[0, 0],)).faults
    assert [fault.segment for fault in faults] == [
        "between `a` and the input of `b`",
        "between `b` and the input of `c`",
    ]
    assert "no change of the reference explains it" in faults[0].evidence
    assert faults[1].cause == "scale_or_offset"


@pytest.mark.parametrize(
    "mistakes",
    [
        {"scale": "attention_scale", "causal": "attention_mask"},
        {"groups": "attention_heads", "bfloat16": "dtype"},
    ],
    ids=" and ".join,
)
def test_two_mistakes_that_part_in_one_place_have_both_causes(mistakes):
    reference, port, x = attention.nets(False, *mistakes)
    found = compare(reference, port, (x,)).faults
    assert [fault.cause for fault in found] == [*mistakes.values()]
    lines = {line.line for fault in found for line in fault.lines.port}
    for name in mistakes:
        marked = attention.marked(attention.__file__, name)
        assert any(abs(one - line) <= 1 for one in lines for line in marked)
    assert all("besides" in fault.evidence for fault in found)


def levels(wrong):
    def normed(self, x):
        total = 0
        for number, layer in enumerate(self.layers):
            y = torch.tanh(x * (number + 1))
            total = total + layer(y / (y.pow(2).sum(dim=1, keepdim=True).sqrt() + 1e-10)).mean()
        return total

    def port(self, x):
        total = 0
        for number, layer in enumerate(self.layers):
            y = jnp.tanh(x * (number + 1))
            if wrong != "left out":
                axis = 1 if wrong == "rows" else -1
                y = y / (jnp.sqrt(jnp.square(y).sum(axis, keepdims=True)) + 1e-10)
            total = total + layer(y).mean()
        return total

    layers = torch.nn.ModuleList(torch.nn.Conv2d(4, 1, 1) for _ in range(3))
    reference = randomise(torch_of(normed, layers=layers))
    return reference, nnx_of(port, layers=nnx.List(map(ported, layers)))


@pytest.mark.parametrize(
    ("wrong", "cause"), [("left out", "scale_or_offset"), ("rows", "norm_axes")]
)
def test_one_mistake_in_a_loop_is_one_fault_with_its_cause(wrong, cause):
    (fault,) = compare(*levels(wrong), (X,)).faults
    assert fault.cause == cause
    assert "explains 100 %" in fault.evidence


class Counted(torch.nn.Module):
    """A costly beginning, which is right, and what follows."""

    runs = 0

    def forward(self, x):
        self.runs += 1
        y = torch.fft.fft(x).real
        for _ in range(20):
            y = torch.tanh(y)
        return torch.sigmoid(y)


def test_the_call_is_run_a_few_times_whatever_the_changes_are():
    def port(self, x):
        y = jnp.fft.fft(jnp.moveaxis(x, -1, 1)).real
        for _ in range(20):
            y = jnp.tanh(y)
        return jnp.moveaxis(jax.nn.sigmoid(y) + 0.01 * jnp.cos(50 * y), 1, -1)

    reference = Counted()
    (fault,) = compare(reference, nnx_of(port), (X,)).faults
    assert reference.runs <= 6
    assert fault.cause == "unknown"
    assert "compare the lines: no change of the reference explains it" in fault.evidence
    assert fault.hint.startswith("compare tests/lines/test_causes.py")


def test_the_search_ends_with_its_time_and_says_so():
    reference, port, x = attention.nets(False, "causal")
    (fault,) = compare(reference, port, (x,), diagnosis_seconds=0).faults
    assert fault.cause == "glue"
    assert "not, after the time for the diagnosis" in fault.evidence
    with pytest.raises(parity.InputError, match="diagnosis_seconds -1: expected a number"):
        compare(reference, port, (x,), diagnosis_seconds=-1)


def in_place(x):
    y = x.clone()
    y += torch.sin(x)
    y[:, 0] *= 2
    view = y[:, 1:]
    view.clamp_(min=-1)
    return torch.nn.functional.relu(y, inplace=True) + x


def looks(x):
    y = torch.sin(x)
    y = y * 2 if float(y.mean()) < 1 else y * 3
    return torch.nn.functional.relu(y)


@pytest.mark.parametrize(
    ("reference", "port"),
    [
        (
            in_place,
            lambda x: jax.nn.leaky_relu(
                (x + jnp.sin(x)).at[..., 0].multiply(2).at[..., 1:].max(-1), 0.1
            ) + x,
        ),
        (looks, lambda x: jax.nn.leaky_relu(2 * jnp.sin(x), 0.1)),
    ],
)  # fmt: skip
def test_a_change_among_writes_and_before_what_the_code_looks_at(reference, port):
    found = compare(
        torch_of(lambda self, x: reference(x)), nnx_of(lambda self, x: port(x)), (X,)
    ).first_fault
    assert found.cause == "activation"
    assert "leaky ReLU 0.1 instead of relu explains 100 %" in found.evidence


@pytest.mark.parametrize("low", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_huge_numbers_of_a_mask_hide_no_scale(low):
    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 2 + (1 - mask[:, None]) * low
        return torch.softmax(scores, -1) @ self.v(x)

    def port_call(self, x, mask):
        scores = self.q(x) @ self.k(x).swapaxes(-1, -2) / 3 + (1 - mask[:, None]) * low
        return jax.nn.softmax(scores, -1) @ self.v(x)

    reference = torch_of(forward, **{name: torch.nn.Linear(8, 8) for name in "qkv"})
    port = port_of(randomise(reference), port_call)
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.float32)
    (fault,) = compare(reference, port, (x, mask)).faults
    assert fault.cause == "attention_scale"
    assert "0.666667" in fault.evidence
    assert "/ 3 + " in fault.lines.port[0].text
