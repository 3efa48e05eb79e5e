"""Small things that differ, each beside something large or under a name that hides it."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.tree import flatten
from parity.measure.alike import alike
from parity.pipeline import run_pair
from parity.report.diff import diff
from tests.nets import torch_of
from tests.ports import nnx_of

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
F = np.float32
LARGEST = np.finfo(F).max


def compare(forward, call, *args, **options):
    reference = torch_of(lambda self, *given: forward(*given))
    return parity.compare(reference, nnx_of(lambda self, *given: call(*given)), args, **options)


# --- tensors, entry by entry


@pytest.mark.parametrize(
    ("ref", "port"),
    [
        (F([1, np.inf, 3]), F([9, 9, 9])),
        (F([1, np.inf, 3]), F([1, -np.inf, 3])),
        (F([np.nan, 2, 3]), F([1, np.nan, 3])),
        (F([[0, -np.inf], [0, 0]]), F([[0, -np.inf], [5, 0]])),
        (F([LARGEST, 1, 2]), F([LARGEST, 2, 1])),
        (F([-1e9, 0.5, 2]), F([-1e9, 0, 2])),
        (np.float16([np.inf, 1, 2]), np.float16([np.inf, 1, 3])),
        (np.complex64([1e6, 1j, 2]), np.complex64([1e6, -1j, 2])),
        (np.int32([10**8, 50, 2]), np.int32([10**8, 51, 2])),
        (F([1e4, 1e-3, 2e-3]), F([1e4, 1.1e-3, 2e-3])),
    ],
)
def test_one_large_entry_makes_no_tensor_equal(ref, port):
    reference = torch_of(lambda self, x: x * 2)
    reference.register_buffer("table", torch.from_numpy(ref))

    def found(values):
        held = nnx_of(lambda self, x: x * 2, table=nnx.Variable(jnp.asarray(values)))
        return parity.compare(reference, held, (X,))

    assert found(ref).verdict == "PASS"
    (line,) = found(port).weights
    assert found(port).verdict == "WARN"
    assert line.finding


def test_values_rounded_once_more_are_the_same():
    own = torch.nn.Parameter(torch.linspace(0.1, 3e4, 60).reshape(6, 10))
    held = (own.detach().numpy().astype(np.float64) * (1 + 1e-7)).astype(F)
    reference = torch_of(lambda self, x: x @ self.w, w=own)
    port = nnx_of(lambda self, x: x @ self.w[...], w=nnx.Param(jnp.asarray(held)))
    assert [line.finding for line in parity.compare(reference, port, (X,)).weights] == [""]


def test_only_a_buffer_may_be_a_counter_by_its_name():
    reference = torch_of(
        lambda self, x: x * 2, num_batches_tracked=torch.nn.Parameter(torch.ones(4))
    )
    assert parity.compare(reference, nnx_of(lambda self, x: x * 2), (X,)).verdict == "FAIL"


# --- plain values, and signs of zeros


@pytest.mark.parametrize(
    ("ref", "port"),
    [(True, 1), (1, True), (False, 0.0), (0.0, False), (3.0, 3.00001), ("1", 1), (b"a", "a")],
)
def test_other_plain_values(ref, port):
    report = compare(lambda x: {"y": x, "flag": [ref]}, lambda x: {"y": x, "flag": [port]}, X)
    assert report.verdict == "FAIL"
    same = compare(lambda x: {"y": x, "flag": [ref]}, lambda x: {"y": x, "flag": [ref]}, X)
    assert same.verdict == "PASS"


def test_a_float_rounded_on_the_way_is_the_same():
    assert compare(lambda x: (x, 0.1), lambda x: (x, float(F(0.1))), X).verdict == "PASS"


SIGNED = X.copy()
SIGNED[0] = -0.0


@pytest.mark.parametrize(
    ("forward", "call", "verdict"),
    [
        (lambda x: torch.where(x > 0, x, -0.0), lambda x: jnp.where(x > 0, x, 0.0), "WARN"),
        (lambda x: x.flip(0), lambda x: x[::-1] + 0.0, "WARN"),
        (lambda x: x.reshape(6, 40), lambda x: jnp.where(x == 0, 0.0, x).reshape(6, 40), "WARN"),
        (lambda x: x * (x > 0.3), lambda x: jnp.where(x > 0.3, x, 0.0), "PASS"),
        (lambda x: torch.relu(x), nnx.relu, "PASS"),
        (lambda x: torch.where(x > 0, x, -0.0), lambda x: jnp.where(x > 0, x, -0.0), "PASS"),
    ],
    ids=["constant", "flipped", "reshaped", "product", "maximum", "right"],
)
def test_signs_of_zeros_that_are_moved(forward, call, verdict):
    assert compare(forward, call, SIGNED).verdict == verdict


# --- names


@pytest.mark.parametrize(
    "nest",
    [
        lambda a, b: {0: a, "0": b},
        lambda a, b: {"a.b": a, "a": {"b": b}},
        lambda a, b: {"a": [a], "a.0": b},
        lambda a, b: [{"x": a, "x.y": b}, {"x": {"y": a * 2}}],
        lambda a, b: {"": {"k": a}, "k": b},
    ],
    ids=["number", "dot", "list", "inner", "empty"],
)
@pytest.mark.parametrize("factors", [(3, 2), (5, 2), (3, 5)])
def test_two_outputs_of_one_dotted_name(nest, factors):
    """Each of the two is seen when it is wrong."""
    one, other = factors
    report = compare(lambda x: nest(x * 3, x * 2), lambda x: nest(x * one, x * other), X)
    assert report.verdict == ("PASS" if factors == (3, 2) else "FAIL")
    assert len({row.leaf for row in report.rows}) == len(report.rows)
    diff(report, report)


def test_names_that_nothing_tells_apart_are_told_apart():
    class Key:
        def __str__(self):
            return "k"

    names = [name for name, _ in flatten({Key(): X, Key(): X, "k": X}).arrays]
    assert len({*names}) == 3


# --- small channels, and what all entries have alike


@pytest.mark.parametrize("wrong", [1.0, 1.01])
@pytest.mark.parametrize("at", [0, 2])
def test_a_small_channel_of_complex_numbers(wrong, at):
    x = (X[:, :3] + 1j * X[:, 3:]).astype(np.complex64)
    scale = F([1e6, 1e6, 1e6])
    scale[at] = 1
    other = scale * np.where(np.arange(3) == at, wrong, 1).astype(F)
    report = compare(lambda x: x * torch.from_numpy(scale), lambda x: x * other[None], x)
    assert report.verdict == ("PASS" if wrong == 1 else "WARN")


@pytest.mark.parametrize("wrong", [1.0, 1.5])
@pytest.mark.parametrize("shape", [(40,), (40, 1), (1, 40)])
def test_a_small_entry_of_a_vector(wrong, shape):
    scale = np.full(40, 1000, F)
    scale[7] = 1e-2
    other = scale * np.where(np.arange(40) == 7, wrong, 1).astype(F)
    x = 2 + X[:, 0] / 10
    scale, other, x = (one.reshape(shape) for one in (scale, other, x))
    report = compare(lambda x: x * torch.from_numpy(scale), lambda x: x * other, x)
    assert report.verdict == ("PASS" if wrong == 1 else "WARN")


def one_pass(x):
    return (x + 300).square().mean(-1) - (x + 300).mean(-1) ** 2


WIDE = np.random.default_rng(2).standard_normal((64, 64)).astype(F)


FACTORS = {
    "factor": lambda v: v * 1.02,
    "offset": lambda v: v + 0.05,
    "both": lambda v: v * 0.99 - 0.02,
    "small factor": lambda v: v * 1.004,
}


@pytest.mark.parametrize("wrong", FACTORS.values(), ids=FACTORS)
def test_a_poor_reference_excuses_no_factor(wrong):
    right = compare(one_pass, lambda x: x.var(-1), WIDE)
    assert right.verdict == "PASS"
    assert right.rows[0].exclusive.floor_rel_l2 > 1e-3
    assert compare(one_pass, lambda x: wrong(x.var(-1)), WIDE).verdict != "PASS"


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize(("at", "number"), [("factor", 55.4256), ("offset", 0.71853)])
def test_a_number_that_the_reference_alone_rounds(kind, rounds, at, number):
    """The sqrt(width) of Gemma's embeddings: a port that does not round it is nearer to float64."""
    rounded = torch.tensor(number, dtype=getattr(torch, kind)).item()
    own = F(rounded if rounds else number)

    def narrow(x):
        one = torch.tensor(number, dtype=getattr(torch, kind)).to(x.dtype)
        return x * one if at == "factor" else x + one

    report = compare(narrow, lambda x: x * own if at == "factor" else x + own, WIDE)
    assert report.verdict == ("PASS" if rounds else "FAIL")
    assert [fault.cause for fault in report.faults] == ([] if rounds else ["dtype"])


@pytest.mark.parametrize("shape", [(1, 4096), (1, 1, 512), (64, 64)])
@pytest.mark.parametrize("seed", range(3))
def test_a_poor_sum_is_no_number_of_fewer_bits(shape, seed):
    """All entries of a norm over everything share what a variance in one pass is off by."""
    x = (100 + np.random.default_rng(seed).standard_normal(shape)).astype(F)

    def poor(x):
        mean = x.mean()
        return (x - mean) / (x.square().mean() - mean**2 + 1e-5).sqrt()

    def good(x):
        return (x - x.mean()) / jnp.sqrt(x.var() + 1e-5)

    assert compare(poor, good, x).verdict != "FAIL"


def test_only_the_distance_from_float64_counts_where_r_is_limited():
    def narrow(x):
        return x * torch.tensor(55.4256, dtype=torch.bfloat16).to(x.dtype)

    case = parity.Case("limited", (WIDE,), r_limit=10.0)
    pair = parity.Pair(
        "numbers",
        lambda options, seed: torch_of(lambda self, x: narrow(x)),
        lambda options, reference: nnx_of(lambda self, x: x * F(55.4256)),
        lambda reference, options, seed: [case],
    )
    assert not run_pair(pair).faults


def test_a_port_as_poor_as_the_reference_passes():
    def call(x):
        x = x + 300
        return jnp.square(x[:, ::-1]).mean(-1) - x.mean(-1) ** 2

    assert compare(one_pass, call, WIDE).verdict == "PASS"


@pytest.mark.parametrize("share", [False, True])
def test_rounding_that_all_entries_of_a_row_share_is_none(share):
    """The mean of a row is off by some roundings, on both sides, each in its own way."""
    draw = np.random.default_rng(3)
    wide = draw.standard_normal((32, 50))
    ref, port = (wide + 1e-4 * draw.standard_normal((32, 1)) for _ in range(2))
    port = port + 1e-3 * share
    r, _ = alike(ref.astype(F), port.astype(F), wide)
    assert (r > 10) == share
