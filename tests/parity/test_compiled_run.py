"""The port that nobody watches: the same result, or the report says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax import lax

import parity
from parity.core.pair import Case
from parity.host.progress import Progress
from parity.options.options import Options
from parity.report.diff import diff
from parity.run.case import run_case
from parity.run.running_port import RunningPort
from parity.run.running_reference import RunningReference
from tests.nets import port_of, torch_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)


def torch_loop(self, xs):
    state = torch.zeros(3, 4)
    for x in xs:
        state = self.cell(state, x)
    return self.head(state)


def loop(self, xs):
    """As in PyTorch, one step after the other."""
    state = jnp.zeros((3, 4))
    for x in xs:
        state = self.cell(state, x)
    return self.head(state)


def scanned(self, xs):
    def step(state, x):
        return self.cell(state, x), None

    return self.head(lax.scan(step, jnp.zeros((3, 4)), xs)[0])


def watched(self, xs):
    """Another function inside a program than outside."""
    compiled = isinstance(xs, jax.core.Tracer)
    state = jnp.zeros((3, 4))
    for x in xs:
        state = self.cell(state * 0.9 if compiled else state, x)
    return self.head(state)


def make_port(reference, call=loop, **parts):
    step = lambda self, state, x: jnp.tanh(self.linear(state + x))  # noqa: E731
    return port_of(reference, call, cell=port_of(reference.cell, step), **parts)


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    step = lambda self, state, x: torch.tanh(self.linear(state + x))  # noqa: E731
    cell = torch_of(step, linear=torch.nn.Linear(4, 4))
    return torch_of(torch_loop, cell=cell, head=torch.nn.Linear(4, 4))


@pytest.fixture(scope="module")
def plain(reference):
    return parity.compare(reference, make_port(reference), (X,))


def test_a_correct_port_is_the_same_unwatched(plain):
    assert plain.verdict == "PASS"
    assert plain.notes == ()
    fact = plain.facts["uncaptured"]["__call__"]
    assert float(fact.removeprefix("rel_l2 ").split()[0]) < 1e-6


@pytest.mark.parametrize("call", [scanned, nnx.jit(scanned)], ids=["scanned", "jitted"])
def test_eager_and_compiled_runs_are_recorded_alike(call, reference, plain):
    port = make_port(reference, call)
    compiled = parity.compare(reference, port, (X,))
    eager = parity.compare(reference, port, (X,), eager=True)
    wanted = plain.table
    for report in (compiled, eager):
        assert report.faults == ()
        assert report.notes == ()
        table = report.table
        assert list(table.path) == list(wanted.path)
        assert list(table.call) == list(wanted.call)
        np.testing.assert_allclose(table.rel_l2, wanted.rel_l2, atol=1e-6)
        np.testing.assert_allclose(table.incl_rel_l2, wanted.incl_rel_l2, atol=1e-6)
    assert eager.verdict == "PASS"
    assert eager.coverage.complete


@pytest.mark.parametrize("eager", [False, True])
def test_a_fault_inside_a_program_is_named_either_way(reference, eager):
    port = make_port(reference, nnx.jit(scanned))
    port.cell.linear.bias[...] = port.cell.linear.bias[...] + 0.1
    report = parity.compare(reference, port, (X,), eager=eager)
    assert [fault.path for fault in report.faults] == ["cell.linear"]
    assert report.notes == ()


def test_another_result_in_a_program_fails_where_it_begins(reference, plain):
    report = parity.compare(reference, make_port(reference, watched), (X,))
    assert report.verdict == "FAIL"
    assert report.notes == ()
    (fault,) = report.faults
    assert (fault.path, fault.call, fault.case) == ("cell.linear", 1, "__call__/compiled")
    text = fault.magnitude
    assert text.startswith("the uncaptured, jitted port returns something else: rel_l2 ")
    assert text.endswith("the first call that differs is `cell.linear`, call 1")
    (row,) = [row for row in report.rows if row.verdict == "FAIL"]
    assert (row.case, row.path, row.reason) == ("__call__/compiled", "", text)
    assert not diff(plain, report).holds(10)
    assert diff(report, plain).holds(10)
    quiet = compare(reference, make_port(reference, watched), (X,))
    assert quiet.verdict == "PASS"
    assert "uncaptured" not in quiet.facts


def test_a_port_at_fault_is_measured_against_pytorch_s_own_noise(reference):
    port = make_port(reference, watched)
    port.head.bias[...] = port.head.bias[...] + 10
    faults = parity.compare(reference, port, (X,)).faults
    assert [fault.path for fault in faults] == ["head", "cell.linear"]
    assert "returns something else" in faults[1].magnitude


def test_a_port_that_looks_at_values_cannot_be_compiled(reference):
    def looking(self, xs):
        return loop(self, xs if xs.max() > 0 else -xs)

    report = parity.compare(reference, make_port(reference, looking), (X,))
    assert report.verdict == "WARN"
    fact = report.facts["uncaptured"]["__call__"]
    assert fact.startswith("not compared: the port cannot be compiled (TracerBoolConversionError")
    assert report.notes == (f"__call__: {fact}",)


def shipped(model, xs, factor=1.0):
    return model(xs) * factor


def shipped_wrong(model, xs):
    return model(xs) * 1.01


def shipped_broken(model, xs):
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (shipped, ""),
        (shipped_wrong, "returns something else: rel_l2 1.0e-02"),
        (shipped_broken, "the port as it is shipped fails (RuntimeError: no such kernel)"),
    ],
)
def test_what_is_shipped_is_compared(reference, function, said):
    case = Case("loop", (X,), shipped=function)
    outcome = run_case(
        case,
        RunningReference(reference),
        RunningPort(make_port(reference)),
        Options(),
        (),
        Progress(),
    )
    assert outcome.notes == ()
    assert [said in fault.magnitude for fault in outcome.faults] == [True] * bool(said)
    assert [row.verdict for row in outcome.rows if row.case == "loop/compiled"] == (
        ["FAIL"] * bool(said)
    )
    assert list(outcome.extras.uncaptured) == ["loop"]


def test_jit_stays_as_the_user_set_it(reference):
    seen = []

    def noting(self, xs):
        seen.append(bool(jax.config.jax_disable_jit))
        return loop(self, xs)

    parity.compare(reference, make_port(reference, noting), (X,), eager=True)
    assert seen[0]
    assert not all(seen)  # the run that nobody watches is a program all the same
    assert not jax.config.jax_disable_jit


def test_random_streams_are_those_of_the_recorded_run(reference):
    """Those of a port that draws anew in each run, and is another function inside a program."""

    def random(self, xs):
        noise = jax.random.normal(self.rngs.noise(), (4,)).reshape(1, 1, 4)
        last = 1.1 if isinstance(xs, jax.core.Tracer) else 1.0
        return loop(self, xs + 0.01 * noise) * last

    port = make_port(reference, random, rngs=nnx.Rngs(7))
    drawn, fault = parity.compare(reference, port, (X,)).faults
    assert drawn.cause == "dropout"
    assert "rel_l2 1.0e-01" in fault.magnitude
    assert "the first call that differs" not in fault.magnitude  # the factor is the root's own
    assert fault.path == ""
    assert int(port.rngs.noise.count[...]) == 0
