import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.capture.hooks_nnx import STAMP
from parity.capture.nnx import record, submodules
from parity.core.store import Store
from tests.ports import nnx_of


class Scale(nnx.Module):
    def __init__(self, factor):
        self.factor = nnx.Param(jnp.float32(factor))

    def __call__(self, x):
        return x * self.factor[...]


class Louder(Scale):
    """Calls the __call__ it inherits: one call, not two."""

    def __call__(self, x):
        return super().__call__(x) * 2


class Quiet(Scale):
    """Inherits __call__."""


class Net(nnx.Module):
    def __init__(self):
        self.a = Louder(2.0)
        self.b = Quiet(3.0)
        self.shared = self.b

    def __call__(self, x):
        return self.b(self.a(x))

    def compiled(self, x):
        return _compiled(self, x)

    def scanned(self, x):
        def body(carry, row):
            return carry, self.b(row)

        return jax.lax.scan(body, 0, self.a(x))[1]


@nnx.jit
def _compiled(net, x):
    return net(x)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def store():
    with Store() as store:
        yield store


def run(module, *args, method="__call__", store=None):
    return record(module, method, args, {}, store=store)


def paths(trace):
    return [(call.path, call.number, call.traced) for call in trace.calls]


def test_eager_calls_inherited_and_overridden(store):
    trace = run(Net(), X, store=store)
    assert paths(trace) == [("a", 0, False), ("b", 0, False), ("", 0, False)]
    np.testing.assert_array_equal(store.get(trace.calls[0].outputs[0].buffer), X * 4)
    np.testing.assert_array_equal(store.get(trace.calls[1].inputs[0].buffer), X * 4)


def test_under_jit_also_when_it_is_warm(store):
    net = Net()
    net.compiled(X)
    for _ in range(2):
        trace = run(net, X, method="compiled", store=store)
        assert paths(trace) == [("a", 0, True), ("b", 0, True), ("", 0, False)]
        assert [call.parent for call in trace.calls] == [2, 2, -1]
        np.testing.assert_array_equal(store.get(trace.calls[1].outputs[0].buffer), X * 12)
    # and no program with record keeping is left behind
    before = len(trace.calls)
    net.compiled(X)
    assert len(trace.calls) == before


def test_each_pass_of_a_scan_is_a_call(store):
    trace = run(Net(), X, method="scanned", store=store)
    assert paths(trace) == [("a", 0, False), ("b", 0, True), ("b", 1, True), ("", 0, False)]
    np.testing.assert_array_equal(store.get(trace.calls[2].outputs[0].buffer), X[1] * 12)


def test_a_shared_module_has_its_first_path():
    assert list(submodules(Net())) == ["", "a", "b"]


def test_lists_and_dicts_are_walked():
    class Holder(nnx.Module):
        def __init__(self):
            self.items = nnx.List([Scale(1.0), nnx.List([Scale(2.0)])])
            self.named = nnx.Dict({"x": Scale(3.0)})

    assert list(submodules(Holder())) == ["", "items.0", "items.1.0", "named.x"]


@pytest.mark.parametrize("breaks", [False, True])
def test_classes_and_modules_are_restored(store, breaks):
    net = Net()
    before = {cls: dict(vars(cls)) for cls in (Scale, Louder, Quiet, Net)}
    if breaks:
        with pytest.raises(TypeError):
            run(net, X, X, store=store)
    else:
        run(net, X, store=store)
    assert {cls: dict(vars(cls)) for cls in before} == before
    assert not any(hasattr(module, STAMP) for module in submodules(net).values())
    run(net, X, store=store)  # the lock is free again


def test_other_instances_are_not_recorded(store):
    other = Net()

    port = nnx_of(lambda self, x: self.own(x) + other(x), own=Scale(1.0))

    assert [path for path, *_ in paths(run(port, X, store=store))] == ["own", ""]


def test_arguments_by_name_defaults_left_out(pair, image, store):
    port = pair[1]
    trace = run(port, np.moveaxis(image, 1, -1), store=store)
    blocks = [call for call in trace.calls if call.path == "block"]
    assert [[leaf.name for leaf in call.inputs] for call in blocks] == [["x"], ["scale", "x"]]


def test_module_info_tells_parameters_from_state():
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    info = capture_nnx.module_info("bn", norm)
    assert info.parameters == {"scale": 4, "bias": 4}
    assert info.buffers == {"mean": 4, "var": 4}
    drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    assert not capture_nnx.module_info("drop", drop).buffers
