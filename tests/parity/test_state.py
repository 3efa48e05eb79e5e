"""What a comparison must not change, and what must not change a comparison."""

from collections import defaultdict, deque, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flax import nnx

import parity
from parity import InputError
from parity.core.exceptions import first_line
from parity.measure import free as measure
from tests.nets import torch_of
from tests.ports import nnx_of

X = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
WEIGHT = np.random.default_rng(4).standard_normal((6, 6)).astype(np.float32) / 3


def reference_of(function, **buffers):
    """A leaf with a weight and buffers, and the code given."""
    leaf = torch_of(function, weight=torch.nn.Parameter(torch.from_numpy(WEIGHT.copy())))
    for name, value in buffers.items():
        leaf.register_buffer(name, torch.tensor(value))
    return leaf


def port_of(function, **variables):
    """The same of the port: its weight, variables, and the code given."""
    variables = {name: nnx.Variable(jnp.asarray(value)) for name, value in variables.items()}
    return nnx_of(function, weight=nnx.Param(jnp.asarray(WEIGHT.T)), **variables)


def make_torch(m, calls=1):
    """Hands something of its own to `m`: the port's is not the same bit for bit."""
    return torch_of(
        lambda self, x: sum(self.m(torch.exp(x)) for _ in range(self.calls)), m=m, calls=calls
    )


def make_port(m, calls=1):
    return nnx_of(
        lambda self, x: sum(self.m(jnp.exp(x)) for _ in range(self.calls)), m=m, calls=calls
    )


def shell(m):
    """A container that only calls another one."""
    return torch_of(lambda self, x: self.inner(x), inner=m)


def port_shell(m):
    return nnx_of(lambda self, x: self.inner(x), inner=m)


def linear(self, x):
    return F.linear(x, self.weight)


def port_linear(self, x):
    return jnp.dot(x, self.weight[...], precision="highest")


def single(self, x):
    return F.linear(torch.from_numpy(x.numpy().astype(np.float32)), self.weight)


def asserting(self, x):
    assert x.dtype == torch.float32
    return F.linear(x, self.weight)


def by_type(self, x):
    return F.linear(x, self.weight) * {torch.float32: 1.0}[x.dtype]


# --- references that do not run in float64


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (single, "RuntimeError"),
        (asserting, "AssertionError"),
        (by_type, "KeyError: torch.float64"),
    ],
)
def test_a_reference_for_float32_alone_is_unknown(function, reason):
    reference = make_torch(reference_of(function))
    port = make_port(port_of(lambda self, x: 1.01 * port_linear(self, x)))
    report = parity.compare(reference, port, (X,))
    assert report.verdict == "UNKNOWN"
    reasons = {row.path: row.reason for row in report.rows}
    assert f"the reference does not run in float64: {reason}" in reasons["m"]
    assert f"the reference does not run in float64: {reason}" in reasons[""]


def test_the_first_line_of_an_error():
    assert first_line(AssertionError()) == "AssertionError"
    assert first_line(ValueError("\none\ntwo")) == "ValueError: one"


# --- the user's arguments and models


def test_the_callers_tensor_is_not_written_to():
    x = torch.from_numpy(X.copy())
    reference = reference_of(lambda self, x: F.linear(x.relu_(), self.weight))
    port = port_of(lambda self, x: port_linear(self, nnx.relu(x)))
    assert parity.compare(reference, port, (x,)).verdict == "PASS"
    np.testing.assert_array_equal(x.numpy(), X)


def test_one_tensor_given_twice_stays_one():
    reference = torch_of(lambda _, x, y: x * 2.0 if x is y else x * 3.0)

    assert parity.compare(reference, nnx_of(lambda _, x, y: x * 2.0), (X, X)).verdict == "PASS"


def test_the_reference_is_left_as_it_was():
    def forward(self, x):
        self.reassigned = self.reassigned + 1
        self.written += 1
        self.calls += 1
        self.cache = x
        self.seen.append(x)
        self.new = x
        return F.linear(x, self.weight)

    reference = reference_of(forward, reassigned=0, written=0.0)
    reference.calls, reference.cache, reference.seen = 0, None, []
    reassigned = reference.reassigned
    random = torch.get_rng_state()
    assert parity.compare(reference, port_of(port_linear), (X,)).faults == ()
    assert reference.reassigned is reassigned
    assert (int(reference.reassigned), float(reference.written)) == (0, 0.0)
    assert (reference.calls, reference.cache, reference.seen) == (0, None, [])
    assert not hasattr(reference, "new")
    assert torch.equal(torch.get_rng_state(), random)


def test_the_port_is_left_as_it_was():
    def call(self, x):
        self.count[...] += 1
        self.replaced = nnx.Variable(jnp.ones(()))
        self.new = nnx.Variable(x)
        self.drop(x)
        return port_linear(self, x)

    port = port_of(call, count=0, replaced=0.0)
    port.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    replaced, nodes = port.replaced, port._pytree__nodes
    rngs = nnx.Rngs(7)
    assert parity.compare(reference_of(linear), port, (X,)).faults == ()
    assert port.replaced is replaced
    assert (int(port.count[...]), float(port.replaced[...])) == (0, 0.0)
    assert not hasattr(port, "new")
    assert port._pytree__nodes == nodes
    assert int(port.drop.rngs.count[...]) == 0

    def random(self, x, rngs):
        rngs.dropout()
        return self.m(x)

    given = {"rngs": rngs}
    parity.compare(shell(reference_of(linear)), nnx_of(random, m=port_of(port_linear)), (X,),
                   rename={"inner": "m"}, nnx_kwargs=given)  # fmt: skip
    assert int(rngs.default.count[...]) == 0


class Cache:
    """An object of the user's own, with another inside it."""

    def __init__(self):
        self.seen, self.inner = 0, {"keys": []}

    def add(self):
        self.seen += 1
        self.inner["keys"].append(self.seen)


class Rows(torch.nn.Module):
    """Leaves something in all kinds of places, and hangs on what it finds there."""

    shared: ClassVar[list[int]] = []

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(WEIGHT.copy()))
        self.table = torch.nn.Embedding(4, 6, max_norm=1.0)
        self.log = {"calls": [[0]]}
        self.last, self.known = deque([1]), {1}
        self.cache, self.counts = Cache(), np.zeros(2)
        self.held = [torch.zeros(2)]
        self.ids = iter(range(100))

    def forward(self, x, given, more):
        turn = len(self.log["calls"]) + len(self.shared) + self.cache.seen + len(given["seen"])
        turn += len(self.last) + len(self.known) + len(more) + next(self.ids)
        turn += int(self.counts[0] + self.held[0][0])
        self.log["calls"].append([turn])
        self.shared.append(turn)
        self.cache.add()
        given["seen"].append(turn)
        given["cache"].add()
        more.add(turn)
        self.last.append(turn)
        self.known.add(turn + 100)
        self.counts[0] += 1
        self.held[0] += 1
        self.weight.data.mul_(0.5)
        return F.linear(x, self.weight) * turn + self.table(torch.tensor(1))


def test_every_run_begins_from_the_same_state_however_deep():
    reference = Rows().eval()
    table = reference.table.weight.detach().clone()
    row = table[1] / max(1.0, float(table[1].norm()) + 1e-7)
    given, more = {"seen": [], "cache": Cache()}, {5}
    port = port_of(
        lambda self, x, given, more: port_linear(self, x) * 2.0 + self.row[...][None],
        row=row.numpy(),
    )
    report = parity.compare(reference, port, (X, given, more), ignore=["table", "row"])
    assert [row.reason for row in report.rows if row.verdict == "UNKNOWN"] == []
    assert report.faults == ()
    assert reference.weight.detach().numpy().tolist() == WEIGHT.tolist()
    assert torch.equal(reference.table.weight, table)
    assert (given["seen"], given["cache"].seen, given["cache"].inner) == ([], 0, {"keys": []})
    assert (more, reference.log, Rows.shared) == ({5}, {"calls": [[0]]}, [])
    assert ([*reference.last], reference.known) == ([1], {1})
    assert (reference.cache.seen, reference.cache.inner) == (0, {"keys": []})
    assert (reference.counts.tolist(), reference.held[0].tolist()) == ([0, 0], [0, 0])
    assert next(reference.ids) == 0


def test_the_port_begins_from_the_same_state_however_deep():
    def call(self, x, seen):
        self.log["calls"][0].append(1)
        self.cache.add()
        seen.add(len(seen))
        return port_linear(self, x) * len(self.log["calls"][0]) * self.cache.seen * len(seen)

    port = port_of(call)
    port.log, port.cache = nnx.data({"calls": [[]]}), Cache()
    seen = set()
    reference = reference_of(lambda self, x, seen: F.linear(x, self.weight))
    assert parity.compare(reference, port, (X, seen)).verdict == "PASS"
    assert (port.log, port.cache.seen, port.cache.inner) == ({"calls": [[]]}, 0, {"keys": []})
    assert seen == set()


@pytest.mark.parametrize(
    "make", [lambda: iter([1, 2]), lambda: (i for i in range(3))], ids=["list", "generator"]
)
def test_what_a_run_uses_up_is_refused_before_anything_runs(make):
    ran = []

    def forward(self, x, *given):
        ran.append(x)
        return F.linear(x, self.weight)

    reference = reference_of(forward)
    with pytest.raises(InputError, match=r"argument 1 is a \w+, which one run uses up"):
        parity.compare(reference, port_of(port_linear), (X, make()))
    reference.source = (i for i in range(3))
    with pytest.raises(InputError, match="holds a generator, which one run uses up"):
        parity.compare(reference, port_of(port_linear), (X,))
    assert ran == []


def test_a_module_without_values_is_refused():
    with pytest.raises(InputError, match="weight of the reference has no values yet"):
        parity.compare(torch.nn.LazyLinear(6), port_of(port_linear), (X,))


# --- state between the runs


def port_counting(self, x):
    self.count[...] += 1
    return port_linear(self, x) * self.count[...]


@pytest.mark.parametrize("start", [0, 0.0])
@pytest.mark.parametrize("reassigned", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_healthy_counter_passes(start, reassigned, calls):
    def counting(self, x):
        if reassigned:
            self.count = self.count + 1
        else:
            self.count += 1
        return F.linear(x, self.weight) * self.count

    reference = make_torch(shell(reference_of(counting, count=start)), calls)
    port = make_port(port_shell(port_of(port_counting, count=start)), calls)
    report = parity.compare(reference, port, (X,))
    assert [(row.path, row.reason) for row in report.rows if row.verdict != "PASS"] == []
    assert report.verdict == "PASS"


def test_state_given_away_to_a_program_is_put_back():
    reference = reference_of(lambda self, x: linear(self, x) * 2.0, count=1.0)
    port = port_shell(port_of(port_counting, count=1.0))
    call = nnx.jit(lambda model, x: model(x), donate_argnums=0)
    assert parity.compare(shell(reference), port, (X,), nnx_method=call).verdict == "PASS"
    assert float(port.inner.count[...]) == 1.0
    np.testing.assert_array_equal(port.inner.weight[...], WEIGHT.T)


def test_state_does_not_make_a_fault_dropout():
    def counting(self, x):
        self.count += 1
        return F.linear(x, self.weight) * self.count

    def wrong(self, x):
        return port_counting(self, x) * 1.5

    reference = make_torch(reference_of(counting, count=0.0))
    report = parity.compare(reference, make_port(port_of(wrong, count=0.0)), (X,))
    assert [(fault.path, fault.cause) for fault in report.faults] == [("m", "scale_or_offset")]


def test_dropout_is_still_seen():
    def dropping(self, x):
        return self.drop(port_linear(self, x))

    leaf = port_of(dropping)
    leaf.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    report = parity.compare(make_torch(reference_of(linear)), make_port(leaf), (X,))
    assert [(fault.path, fault.cause) for fault in report.faults] == [("m", "dropout")]


# --- arguments


Two = namedtuple("Two", "a b")


@dataclass
class Held:
    a: Any
    b: Any


@pytest.mark.parametrize(
    "make",
    [
        Two,
        Held,
        pytest.param(lambda a, b: {"a": a, "b": [b]}, id="dict"),
        pytest.param(lambda a, b: defaultdict(list, a=a, b=b), id="defaultdict"),
    ],
)
def test_arrays_inside_arguments(make):
    def parts(given):
        a, b = (given["a"], given["b"]) if isinstance(given, dict) else (given.a, given.b)
        return a, b[0] if isinstance(b, list) else b

    def summed(tanh):
        def call(_, given):
            a, b = parts(given)
            return tanh(a) + b

        return call

    reference, port = torch_of(summed(torch.tanh)), nnx_of(summed(jnp.tanh))
    assert parity.compare(reference, port, (make(X, 2 * X),)).verdict == "PASS"


@pytest.mark.parametrize("jitted", [False, True])
def test_a_typed_key_is_no_array(jitted):
    def keyed(self, x, key):
        jax.random.normal(key, (2,))
        return self.m(jnp.exp(x))

    call = (lambda m, x, key: m(x, key)) if not jitted else nnx.jit(lambda m, x, key: m(x, key))
    report = parity.compare(
        make_torch(reference_of(linear)), nnx_of(keyed, m=port_of(port_linear)), (X,),
        nnx_args=(X, jax.random.key(0)), nnx_method=call,
    )  # fmt: skip
    assert report.verdict == "PASS"


# --- what cannot be observed


def test_calls_under_vmap_count_with_the_call_around_them():
    def mapped(m, factor=1.0):
        return nnx_of(
            lambda self, x: jax.vmap(self.m)(jnp.exp(x)) * self.factor, m=m, factor=factor
        )

    reference = make_torch(shell(reference_of(linear)))
    report = parity.compare(reference, mapped(port_shell(port_of(port_linear))), (X,))
    assert report.verdict == "PASS"
    assert set(report.coverage.inlined) == {"m", "m.inner"}
    assert "calls it transformed" in report.coverage.inlined["m.inner"]
    wrong = parity.compare(reference, mapped(port_shell(port_of(port_linear)), 1.5), (X,))
    assert [fault.path for fault in wrong.faults] == [""]


def test_only_the_cpu_runs_in_float64():
    meta = torch.nn.Linear(6, 6, device="meta")
    with pytest.raises(InputError, match="weight of the reference is on the device meta"):
        parity.compare(meta, port_of(port_linear), (X,))
    away = torch.empty((4, 6), device="meta")
    with pytest.raises(InputError, match="argument 0 of the reference is on the device meta"):
        parity.compare(reference_of(linear), port_of(port_linear), (away,))
    report = parity.compare(reference_of(linear), port_of(port_linear), (X,))
    assert report.environment["torch_device"] == "cpu"


def test_a_method_called_by_name_was_not_called_through_forward():
    reference = torch_of(lambda self, x: linear(self.m, x), m=reference_of(linear))

    port = nnx_of(lambda self, x: port_linear(self.m, x), m=port_of(port_linear))

    report = parity.compare(reference, port, (X,))
    assert "called on neither side (through its forward or __call__)" in report.notes[0]


# --- resources


def test_measuring_takes_few_threads(monkeypatch):
    counts = []

    def pool(threads, *args):
        counts.append(threads)
        return ThreadPoolExecutor(threads, *args)

    monkeypatch.setattr(measure.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(measure, "ThreadPoolExecutor", pool)
    parity.compare(reference_of(linear), port_of(port_linear), (X,))
    assert counts == [4]


@pytest.mark.parametrize("same", [False, True])
def test_arrays_that_are_written_to_are_two_though_their_values_are_the_same(same):
    """Keys and values of a cache are zeros at first."""

    def write(self, x, keys, values):
        keys[:, :2] = x
        values[:, :2] = 2 * x
        return keys - values / 3

    def port_write(self, x, keys, values):
        return keys.at[:, :2].set(x) - values.at[:, :2].set(2 * x) / 3

    x, keys = X[:, :2], np.zeros((len(X), 4), np.float32)
    values = keys.copy() if same else keys + 1
    reference = torch_of(lambda self, *given: self.a(*given), a=torch_of(write))
    port = nnx_of(lambda self, *given: self.a(*given), a=nnx_of(port_write))
    report = parity.compare(reference, port, (x, keys, values), check_compiled=False)
    assert report.verdict in ("PASS", "WARN"), report.notes  # zeros hide mistakes
    assert not report.doubts
