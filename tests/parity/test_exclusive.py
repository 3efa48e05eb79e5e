import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from parity.capture.torch import record
from parity.core.calls import Call
from parity.core.store import Store
from parity.core.thread_pool import Background
from parity.force.common import Recording, Turns
from parity.force.float64 import TorchModules
from parity.force.torch import force_reference
from tests.nets import port_of, torch_of
from tests.ports import Block, Relu, nnx_of
from tests.reports import compare

VECTORS = np.random.default_rng(2).standard_normal((3, 6)).astype(np.float32)


class Changed(Block):
    """The block of the small pair with a mistake of its own."""

    def __init__(self, right, glue=lambda y: y, passed=lambda y: y):
        self.norm, self.conv, self.act = right.norm, right.conv, right.act
        self.glue, self.passed = glue, passed

    def __call__(self, x, scale=1.0):
        h = self.glue(self.conv(self.passed(self.act(self.norm(x)))) * scale) + x
        return h, {"mean": h.mean((1, 2)), "none": None}


def faults(report):
    return [(fault.path, fault.segment) for fault in report.faults]


def test_own_code_after_the_last_call(pair, image):
    reference, port = pair
    port.block = Changed(port.block, glue=lambda y: y * 1.01)
    report = compare(reference, port, (image,))
    assert faults(report) == [("block", "after `conv`")]
    assert report.first_fault.calls == 2
    inside = report.table[report.table.path.str.startswith("block.")]
    assert set(inside.verdict) == {"PASS"}
    assert inside.mae.max() > 1e-4  # the second call runs on what the first got wrong
    assert inside.excl_mae.max() < 1e-6


def test_own_code_between_two_calls(pair, image):
    reference, port = pair
    port.block = Changed(port.block, passed=lambda y: y * 1.01)
    report = compare(reference, port, (image,))
    assert faults(report) == [("block", "between `act` and the input of `conv`")]
    own = report.table[(report.table.path == "block") & (report.table.leaf == "0")]
    assert own.excl_mae.max() < 1e-6  # what it returns is right, given what `conv` returned
    assert own.incl_mae.min() > 1e-4
    assert "a child input is off by 1.0e-02" in report.first_fault.magnitude


def test_mistakes_one_inside_the_other_and_side_by_side(pair, image):
    reference, port = pair
    port.head.bias[...] = port.head.bias[...] + 0.1
    port.block.norm.scale[...] = port.block.norm.scale[...] * 1.1
    port.block = Changed(port.block, glue=lambda y: y * 1.01)
    report = compare(reference, port, (image,))
    assert [path for path, _ in faults(report)] == ["block.norm", "block", "head"]


def test_gain_is_what_a_call_makes_of_the_error_it_gets(pair, image):
    reference, port = pair
    port.stem.bias[...] = port.stem.bias[...] + 0.1
    table = compare(reference, port, (image,)).table
    assert np.isnan(table[table.path == "stem"].gain).all()  # its input is exact
    norm = table[(table.path == "block.norm") & (table.call == 0)].iloc[0]
    stem = table[table.path == "stem"].iloc[0]
    assert norm.gain == pytest.approx(norm.rel_l2 / stem.rel_l2)


def test_a_port_that_compiles_inside(pair, image):
    reference, port = pair

    class Compiled(Changed):
        @nnx.jit
        def __call__(self, x, scale=1.0):
            return super().__call__(x, scale)

    port.block = Compiled(port.block, passed=lambda y: y * 1.01)
    report = compare(reference, port, (image,))
    assert faults(report) == [("block", "between `act` and the input of `conv`")]
    assert report.table.excl_mae.notna().all()


def test_weights_that_other_modules_read():
    """Those of a module that also runs, and of one that never does."""
    torch.manual_seed(0)

    def forward(self, x):
        y = torch.nn.functional.linear(self.shared(x), self.shared.weight)
        return torch.nn.functional.linear(y, self.idle.weight)

    layers = {name: torch.nn.Linear(6, 6) for name in ("shared", "idle")}
    reference = torch_of(forward, **layers)
    port = port_of(
        reference, lambda self, x: self.shared(x) @ self.shared.kernel[...] @ self.idle.kernel[...]
    )
    report = compare(reference, port, (VECTORS,))
    assert set(report.table.verdict) == {"PASS"}
    assert report.table.R.notna().all()


def test_the_reference_is_left_as_it_was(pair, image):
    reference = pair[0]
    before = {name: id(tensor) for name, tensor in reference.named_parameters()}
    compare(*pair, (image,))
    assert {name: id(tensor) for name, tensor in reference.named_parameters()} == before
    assert all("forward" not in vars(module) for module in reference.modules())
    assert all(not module._forward_hooks for module in reference.modules())

    def broken(*_):
        raise KeyboardInterrupt

    with Store() as store:
        trace = record(reference, "__call__", (image,), {}, store=store, layout={})
        recording = Recording(_matches(trace.calls), trace.calls, store)
        with pytest.raises(KeyboardInterrupt):
            force_reference(reference, "__call__", recording, broken, {0})
    assert {name: id(tensor) for name, tensor in reference.named_parameters()} == before
    assert all("forward" not in vars(module) for module in reference.modules())


def forced(reference, image, store, wanted):
    """The recorded calls, and what the run in float64 of those that `wanted` names told of each."""
    trace = record(reference, "__call__", (image,), {}, store=store, layout={})
    heard = {}

    def listen(match, passed, outputs):
        heard[match.ref.path, match.ref.number] = passed, outputs

    recording = Recording(_matches(trace.calls), trace.calls, store)
    orders = {call.order for call in trace.calls if wanted(call)}
    assert force_reference(reference, "__call__", recording, listen, orders) == ""
    return trace.calls, heard


def _matches(calls):
    from parity.align.leaves import match_inputs, match_outputs
    from parity.align.readings import Values
    from parity.core.calls import Match

    return [
        Match(
            c,
            c,
            match_inputs(c.inputs, c.inputs, Values(None)),
            match_outputs("", c.outputs, c.outputs, {}, Values(None)),
            c.parent,
        )
        for c in calls
    ]  # fmt: skip


def test_only_what_is_wanted_runs_in_float64(pair, image, store):
    _, heard = forced(pair[0], image, store, lambda call: call.path == "head")
    computed = {path for (path, _), (_, outputs) in heard.items() if outputs}
    in_place = {"block", "block.act", "blocks.0", "blocks.0.act"}
    assert computed == {"head", ""} | in_place
    assert heard["head", 0][1][""].dtype == torch.float64


def test_a_recurrent_module_runs_in_float64(store):
    reference = torch_of(lambda self, x: self.lstm(x)[0], lstm=torch.nn.LSTM(4, 3))
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    calls, heard = forced(reference, x, store, lambda call: True)
    whole = TorchModules({"": reference}, "__call__").whole(calls[-1], store)
    output = heard["lstm", 0][1]["0"]
    assert output.dtype == torch.float64
    assert whole[""].dtype == np.float64
    np.testing.assert_array_equal(whole[""], output.numpy())
    assert {tensor.dtype for tensor in reference.lstm._flat_weights} == {torch.float32}


def test_calls_inside_one_that_is_left_out_have_had_their_turn(store):
    reference = torch_of(
        lambda self, x: self.inner(x) + self.inner(2 * x),
        inner=torch_of(lambda self, x: self.linear(x), linear=torch.nn.Linear(4, 4)),
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    _, heard = forced(reference, x, store, lambda c: (c.path, c.number) == ("inner", 1))
    assert np.allclose(heard["inner.linear", 1][0]["input"].numpy(), 2 * x)
    assert ("inner.linear", 0) not in heard


def test_an_argument_written_to_in_place_without_a_return():
    def forward(self, x):
        y = x * 2
        self.act(y)
        return y + 1

    reference = torch_of(forward, act=torch.nn.ReLU(inplace=True))
    port = nnx_of(lambda self, x: self.act(x * 2) + 1, act=Relu())

    assert compare(reference, port, (VECTORS,)).verdict == "PASS"


def test_moved_data_must_be_bit_exact():
    reference = torch_of(lambda _, x: torch.nn.functional.pad(x, (1, 1)))

    def make_port(factor):
        return nnx_of(lambda self, x: jnp.pad(x * self.factor, ((0, 0), (1, 1))), factor=factor)

    assert compare(reference, make_port(1.0), (VECTORS,)).verdict == "PASS"
    report = compare(reference, make_port(1.0 + 1e-7), (VECTORS,))
    assert report.table.R.iloc[0] < 1  # less than any other module may be off by
    assert report.verdict == "FAIL"
    assert "only moves data" in report.first_fault.magnitude


def test_exact_arithmetic_is_not_taken_for_moved_data():
    port = nnx_of(lambda _, x: x.sum(1) * np.float32(1 / 3))

    whole = np.arange(18, dtype=np.float32).reshape(2, 9) * 3
    assert compare(torch_of(lambda _, x: x.sum(1) / 3), port, (whole,)).verdict == "PASS"


def test_turns_count_calls_by_their_beginning():
    def call(path, number, order, parent):
        return Call(path, "M", "__call__", number, order, parent, (), ())

    calls = [call("a", 0, 0, 1), call("a", 1, 1, 2), call("", 0, 2, -1)]  # `a` calls itself
    turns = Turns({match.ref.order: match for match in _matches(calls)}, calls)
    assert [turns.next(path).ref.order for path in ("", "a", "a")] == [2, 1, 0]
    assert turns.next("a") is None


def test_an_error_in_the_background_is_raised():
    def fail():
        raise ValueError("lost")

    done = []

    def run():
        with Background() as background:
            background.submit(fail)
            for i in range(10):
                background.submit(done.append, i)

    with pytest.raises(ValueError, match="lost"):
        run()
    assert len(done) < 10  # those that waited with it at most
