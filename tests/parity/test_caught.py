"""Exceptions that the code around a call catches: a fast path that does not take this, a retry."""

import numpy as np
import pytest
import torch
from flax import nnx

from tests.nets import port_of, randomise, torch_of
from tests.ports import nnx_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def picky(self, x):
    """Takes three rows only after they were doubled."""
    y = self.inner(x) if hasattr(self, "inner") else x
    if abs(float(x[0, 0])) < 0.2:
        raise NotImplementedError("a fast path that does not take this")
    return y * 2


def fallback(self, x):
    try:
        return self.fast(x)
    except NotImplementedError:
        return self.slow(x)


def retry(self, x):
    try:
        return self.slow(self.fast(x))
    except NotImplementedError:
        return self.slow(self.fast(x * 9))


def plain(self, x):
    return self.slow(x)


def inside_handler(self, x):
    try:
        raise KeyError("a cache that is empty")
    except KeyError:
        return self.slow(x)


def right(call, port_call, scale=1.0):
    torch.manual_seed(0)
    reference = torch_of(call, fast=torch_of(picky), slow=torch.nn.Linear(4, 4))
    port = port_of(randomise(reference), port_call, fast=nnx_of(picky))
    port.slow.kernel[...] = port.slow.kernel[...] * scale
    return reference, port


@pytest.mark.parametrize(
    ("call", "port_call"),
    [
        (fallback, fallback),
        (fallback, plain),
        (plain, fallback),
        (retry, retry),
        (inside_handler, inside_handler),
    ],
)
def test_a_call_that_raised_is_no_call(call, port_call):
    assert compare(*right(call, port_call), (X,)).verdict == "PASS"
    report = compare(*right(call, port_call, 1.5), (X,))
    assert [fault.path for fault in report.faults] == ["slow"]


def test_calls_inside_one_that_raised_are_none_either():
    def made(make):
        return make(
            fallback, fast=make(picky, inner=make(lambda self, x: x + 1)), slow=make(plain_two)
        )

    def plain_two(self, x):
        return x * 2

    report = compare(made(torch_of), made(nnx_of), (X,))
    assert report.verdict == "PASS"
    assert [row.path for row in report.rows] == ["slow", ""]


def test_a_call_that_raises_in_a_program_is_no_call():
    def untraceable(self, x):
        raise NotImplementedError

    reference = torch_of(fallback, fast=torch_of(untraceable), slow=torch_of(lambda self, x: x * 2))
    port = nnx_of(nnx.jit(fallback), fast=nnx_of(untraceable), slow=nnx_of(lambda self, x: x * 2))
    assert compare(reference, port, (X,)).verdict == "PASS"


def test_an_exception_that_nobody_catches_leaves_no_hooks():
    reference, port = right(lambda self, x: self.fast(x), lambda self, x: self.fast(x))
    with pytest.raises(NotImplementedError):
        compare(reference, port, (X,))
    for module in reference.modules():
        assert not module._forward_hooks
        assert not module._forward_hooks_always_called
