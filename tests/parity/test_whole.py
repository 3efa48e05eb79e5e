"""Whole numbers and truths that a reference makes of rounded floats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import parity
from tests.nets import port_of, torch_of
from tests.ports import nnx_of

DRAW = np.random.default_rng(0)
CODES = (DRAW.standard_normal((256, 257)) * 1e-3 + 1).astype(np.float32)
CODES[128:] = CODES[:128] + np.float32(1e-6) * (np.arange(257) == 0)  # nearly the same ones
X = DRAW.standard_normal((500, 257)).astype(np.float32)
BOUND = float((X.astype(np.float64) @ CODES.T.astype(np.float64))[3, 5])
ZEROS = np.maximum(DRAW.standard_normal((4, 64)), 0).astype(np.float32)
WHOLE = DRAW.integers(0, 4, (6, 40)).astype(np.float32)


def nearest(x, codes, transposed):
    return (x**2).sum(1)[:, None] - 2 * x @ transposed + (codes**2).sum(1)[None]


def compare(forward, call, *args):
    reference = torch_of(lambda self, *given: forward(*given))
    return parity.compare(reference, nnx_of(lambda self, *given: call(*given)), args)


def code(x, codes):
    return nearest(x, codes, codes.T).argmin(1)


def times(x, w):
    return torch.round(x @ w.T * 1000).int()


def port_times(x, w):
    return jnp.round(x @ w.T * 1000).astype("int32")


@pytest.mark.parametrize(
    ("forward", "call", "args"),
    [
        (code, code, (X, CODES)),
        (times, port_times, (X, CODES)),
        (lambda x, w: (x @ w.T) > BOUND, lambda x, w: x @ w.T - BOUND > 0, (X, CODES)),
        (lambda x: torch.topk(x, 40), lambda x: jax.lax.top_k(x, 40), (ZEROS,)),
        (lambda x: x.argsort(-1), lambda x: jnp.argsort(x, -1, stable=False), (WHOLE,)),
        (lambda x: x.argmax(-1), lambda x: x.shape[-1] - 1 - x[:, ::-1].argmax(-1), (WHOLE,)),
    ],
    ids=["nearest code", "rounded", "threshold", "top-k of zeros", "sorted", "last of the largest"],
)
def test_what_rounding_or_a_tie_decides_is_no_mistake(forward, call, args):
    assert compare(forward, call, *args).verdict == "PASS"


@pytest.mark.parametrize(
    ("forward", "call", "args"),
    [
        (code, lambda x, codes: code(x, codes).at[5].add(1), (X, CODES)),
        (code, lambda x, codes: nearest(x, codes, codes.T * 1.2).argmin(1), (X, CODES)),
        (times, lambda x, w: port_times(x, w).at[:, 7].add(1), (X, CODES)),
        (times, lambda x, w: jnp.floor(x @ w.T * 1000).astype("int32"), (X, CODES)),
        (lambda x, w: (x @ w.T) > BOUND, lambda x, w: (x @ w.T) > BOUND * 1.1, (X, CODES)),
        (
            lambda x: torch.topk(x, 40),
            lambda x: (jax.lax.top_k(x, 40)[0], jnp.minimum(jax.lax.top_k(x, 40)[1], 30)),
            (ZEROS,),
        ),
        (lambda x: x.argmax(-1), lambda x: x.argmin(-1), (WHOLE,)),
        (lambda x: x.int() + 1, lambda x: (x.astype("int32") + 1).at[0, 0].add(1), (WHOLE,)),
    ],
    ids=["one code", "distance", "one column", "floor", "bound", "twice", "smallest", "entry"],
)  # fmt: skip
def test_other_whole_numbers_fail(forward, call, args):
    assert compare(forward, call, *args).verdict == "FAIL"


@pytest.mark.parametrize("more", [0, 1])
def test_codes_passed_to_a_child(more):
    """The embedding is given what the code around it decides."""

    def forward(self, x):
        return self.embed(code(x, self.codes)) * 2

    def call(self, x):
        return self.embed(code(x, self.codes) + more) * 2

    table = np.random.default_rng(1).standard_normal((600, 8)).astype(np.float32)
    embed = torch_of(lambda self, ids: torch.from_numpy(table)[ids])
    reference = torch_of(forward, embed=embed, codes=torch.from_numpy(CODES))
    port = nnx_of(call, embed=nnx_of(lambda self, ids: jnp.asarray(table)[ids]), codes=CODES)
    report = parity.compare(reference, port, (X,))
    assert report.verdict == ("FAIL" if more else "PASS")
    assert [fault.path for fault in report.faults] == ([""] if more else [])


def test_runs_with_roundings_leave_the_reference_as_it_was():
    linear = torch.nn.Linear(257, 3)
    before = linear.weight.detach().clone()
    reference = torch_of(lambda self, x: self.linear(x).argmax(-1), linear=linear)
    port = port_of(reference, lambda self, x: self.linear(x).argmin(-1))
    assert parity.compare(reference, port, (X,)).verdict == "FAIL"
    assert torch.equal(linear.weight, before)
