"""A wrong number, flag, None or mask that a caller hands on is the caller's fault."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from tests.nets import ported, torch_of
from tests.ports import nnx_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def compared(inner, call, port_call, port_inner=None):
    """The report on a module that calls `inner` as `c`, which is right, each side in its way."""
    reference = torch_of(lambda self, x: call(self.c, x) - 1, c=torch_of(inner))
    port = nnx_of(lambda self, x: port_call(self.c, x) - 1, c=nnx_of(port_inner or inner))
    return compare(reference, port, (X,))


def scaled(self, x, power=2, flip=False, bias=None):
    y = abs(x) ** power
    y = -y if flip else y
    return y if bias is None else y + bias


def renamed(self, x, exponent=2, negative=False, offset=None):
    return scaled(self, x, exponent, negative, offset)


@pytest.mark.parametrize("port_inner", [scaled, renamed])
@pytest.mark.parametrize(
    ("call", "port_call", "text"),
    [
        (lambda c, x: c(x, 3), lambda c, x: c(x, 4), "4 for `{0}` instead of 3"),
        (lambda c, x: c(x, 3), lambda c, x: c(x), "nothing for `{0}` instead of 3"),
        (
            lambda c, x: c(x, 2, True),
            lambda c, x: c(x, 2, False),
            "False for `{1}` instead of True",
        ),
        (
            lambda c, x: c(x, 2, False, x + 1),
            lambda c, x: c(x, 2, False),
            "for `{2}` instead of an",
        ),
        (lambda c, x: c(x, 2, False, x + 1), lambda c, x: c(x, 2, False, None), "None for `{2}`"),
        (lambda c, x: c(x, 2, False), lambda c, x: c(x, 2, False, x + 1), "an array for `{2}`"),
        (lambda c, x: c(x), lambda c, x: c(x, 3), "3 for `{0}` instead of nothing"),
    ],
)
def test_the_caller_is_at_fault(call, port_call, text, port_inner):
    report = compared(scaled, call, port_call, port_inner)
    names = (
        ["exponent", "negative", "offset"] if port_inner is renamed else ["power", "flip", "bias"]
    )
    assert report.verdict == "FAIL"
    assert [fault.path for fault in report.faults] == [""]
    assert report.first_fault.segment == "between its own input and the input of `c`"
    assert text.format(*names) in report.first_fault.evidence


def test_a_number_that_is_handed_on_twice_is_that_of_the_first():
    def both(order):
        return lambda self, x, power=2: self.inner(x, power) * order

    def net(make, power):
        inner = make(both(2), inner=make(scaled))
        return make(lambda self, x: self.c(x, power) - 1, c=inner)

    report = compare(net(torch_of, 3), net(nnx_of, 4), (X,))
    assert [fault.path for fault in report.faults] == [""]
    report = compare(
        net(torch_of, 3),
        nnx_of(
            lambda self, x: self.c(x, 3) - 1,
            c=nnx_of(lambda self, x, power=2: self.inner(x, 4) * 2, inner=nnx_of(scaled)),
        ),
        (X,),
    )
    assert [fault.path for fault in report.faults] == ["c"]


def test_a_call_that_is_wrong_with_the_same_arguments_stays_at_fault():
    def wrong(self, x, power=2, flip=False, bias=None):
        return scaled(self, x, power, flip, bias) * 1.1

    for port_call in (lambda c, x: c(x, 3), lambda c, x: c(x, 4)):
        report = compared(scaled, lambda c, x: c(x, 3), port_call, wrong)
        assert report.first_fault.path == "c"


def test_other_conventions_for_the_same_thing_are_no_fault():
    report = compared(
        lambda self, x, dim=1: x.softmax(dim) if isinstance(x, torch.Tensor) else x,
        lambda c, x: c(x, dim=1),
        lambda c, x: c(x, dim=-1),
        lambda self, x, dim: jnp.exp(x) / jnp.exp(x).sum(dim, keepdims=True),
    )
    assert report.verdict == "PASS"


# --- what only the port has, as its cache


class Memory:
    """A cache as transformers' are: an object that a call reads and writes."""

    def __init__(self):
        self.seen = None


class RemembersTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, memory):
        h = self.fc(x)
        seen, memory.seen = memory.seen, h
        return x + self.out(torch.tanh(h if seen is None else h + seen))


class TwiceTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(RemembersTorch() for _ in range(3))

    def forward(self, x):
        memories = [Memory() for _ in self.layers]
        for _ in range(2):
            for layer, memory in zip(self.layers, memories, strict=True):
                x = layer(x, memory)
        return x


class Remembers(nnx.Module):
    def __init__(self, theirs, wrong):
        self.fc, self.out, self.wrong = ported(theirs.fc), ported(theirs.out), wrong

    def __call__(self, x, seen):
        h = self.fc(x)
        y = self.out(jnp.tanh(h if seen is None else h + seen))
        return (x + 2 * y if self.wrong else x + y), h


class Twice(nnx.Module):
    def __init__(self, theirs, wrong):
        self.layers = nnx.List([Remembers(x, at == wrong) for at, x in enumerate(theirs.layers)])

    def __call__(self, x):
        memories = [None] * len(self.layers)
        for _ in range(2):
            for at, layer in enumerate(self.layers):
                x, memories[at] = layer(x, memories[at])
        return x


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
def test_a_cache_that_is_wrong_since_an_earlier_call_is_no_fault_of_a_later_one(wrong):
    torch.manual_seed(0)
    theirs = TwiceTorch().eval()
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    report = parity.compare(theirs, Twice(theirs, wrong), (x,), check_compiled=False)
    assert report.verdict == ("PASS" if wrong is None else "FAIL")
    assert [x.path for x in report.faults] == ([] if wrong is None else [f"layers.{wrong}"])


@pytest.mark.parametrize("wrong", [False, True])
def test_a_number_that_only_the_port_hands_on_comes_of_the_reference_s_values(wrong):
    def scale(x, number):
        return x * (1 + number)

    reference = torch_of(
        lambda self, x: self.b(self.a(x)),
        a=torch_of(lambda self, x: torch.tanh(x)),
        b=torch_of(lambda self, x: scale(x, x.argmax().to(x.dtype))),
    )
    port = nnx_of(
        lambda self, x: (lambda h: self.b(h, float(h.argmax())))(self.a(x)),
        a=nnx_of(lambda self, x: jnp.tanh(x) if not wrong else jnp.sin(-x)),
        b=nnx_of(lambda self, x, number: scale(x, number)),
    )
    report = compare(reference, port, (X,))
    assert report.verdict == ("FAIL" if wrong else "PASS")
    assert [fault.path for fault in report.faults] == (["a"] if wrong else [])


def test_what_is_in_doubt_does_not_move_the_place_of_what_fails():
    """What is handed to `a` is off by some roundings, what is handed to `b` wrong."""
    reference = torch_of(
        lambda self, x: self.b(torch.tanh(self.a(x * 0.7))),
        a=torch_of(lambda self, x: x * 2),
        b=torch_of(lambda self, x: x * 3),
    )
    port = nnx_of(
        lambda self, x: self.b(jnp.sin(self.a(x * np.float32(0.7 * (1 + 24 * 2.0**-24))))),
        a=nnx_of(lambda self, x: x * 2),
        b=nnx_of(lambda self, x: x * 3),
    )
    report = compare(reference, port, (X,))
    assert [x.segment for x in report.faults] == ["between `a` and the input of `b`"]


def test_what_is_handed_on_is_in_doubt_as_what_is_returned_is():
    def made(off):
        factor = np.float32(0.7 * (1 + off * 2.0**-24))
        reference = torch_of(
            lambda self, x: self.a(x * 0.7), a=torch_of(lambda self, x: torch.relu(x))
        )
        port = nnx_of(
            lambda self, x: self.a(x * factor), a=nnx_of(lambda self, x: jnp.maximum(x, 0))
        )
        return compare(reference, port, (X,))

    assert made(0).verdict == "PASS"
    doubtful = made(24)
    assert doubtful.verdict in ("WARN", "FAIL")
    assert [row.path for row in doubtful.rows if row.verdict != "PASS"] == [""]
