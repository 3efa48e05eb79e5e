"""Named points in the code of both sides, and what is found at them."""

import math
import subprocess
import sys
import threading
import timeit
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.capture import nnx as capture_nnx
from parity.capture import taps
from parity.capture import torch as capture_torch
from parity.core.store import Store
from parity.traces.check import check_trace
from parity.traces.record import record_pair
from tests.nets import port_of, ported, torch_of
from tests.ports import copy_weights, nnx_of
from tests.reports import compare, places

WIDTH, HEADS = 8, 2
X = np.random.default_rng(0).standard_normal((3, 5, WIDTH)).astype(np.float32)
LAST = torch.ones(5, 5).triu(1).bool()


class TorchAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = parity.tap("rotated", (rotated(q), rotated(k)))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        scores = parity.tap("scores", scores.masked_fill(LAST, -1e9))
        weights = parity.tap("weights", scores.softmax(-1))
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


def angles(length, half):
    return np.outer(np.arange(length), 0.5 ** np.arange(half)).astype(np.float32)


def rotated(x):
    """Half of the channels with the other half, as LLaMA has it."""
    cos, sin = (f(torch.from_numpy(angles(x.shape[-2], 2))) for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nnx.Module):
    interleaved = False
    axis = -1
    masked = 1
    scaled = True

    def __init__(self):
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=nnx.Rngs(0))
        self.out = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def __call__(self, x):
        q, k, v = jnp.moveaxis(
            self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1), (2, 3), (0, 2)
        )  # fmt: skip
        q, k = parity.tap("rotated", (self.rotated(q), self.rotated(k)))
        scores = q @ jnp.swapaxes(k, 2, 3) / (math.sqrt(q.shape[-1]) if self.scaled else 1)
        unseen = np.triu(np.ones((5, 5), bool), self.masked)[None, None]
        scores = parity.tap("scores", jnp.where(unseen, -1e9, scores))
        weights = parity.tap("weights", nnx.softmax(scores, self.axis))
        return self.out(jnp.swapaxes(weights @ v, 1, 2).reshape(x.shape))

    def rotated(self, x):
        cos, sin = (f(angles(x.shape[-2], 2))[None, None] for f in (jnp.cos, jnp.sin))
        a, b = (x[..., ::2], x[..., 1::2]) if self.interleaved else jnp.split(x, 2, -1)
        pair = a * cos - b * sin, b * cos + a * sin
        return (
            jnp.stack(pair, -1).reshape(x.shape) if self.interleaved else jnp.concat(pair, axis=-1)
        )


def residual(self, x):
    return x + self.attn(self.norm(x))


def make_block(attention=Attention, **mistakes):
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(WIDTH)
    reference = torch_of(residual, norm=norm, attn=TorchAttention()).eval()
    with torch.no_grad():
        norm.weight.normal_(1.0, 0.3)
    attn = copy_weights(reference.attn, attention())
    port = nnx_of(residual, norm=ported(norm), attn=attn)
    for name, value in mistakes.items():
        setattr(port.attn, name, value)
    return reference, port


@pytest.fixture(scope="module")
def healthy():
    return compare(*make_block(), (X,), emulate="bf16")


def test_a_tap_returns_its_value_and_leaves_nothing_in_a_program():
    x = {"a": jnp.ones(3)}
    assert parity.tap("x", x) is x
    with_tap = jax.make_jaxpr(lambda x: parity.tap("x", x * 2) + 1)(1.0)
    assert str(with_tap) == str(jax.make_jaxpr(lambda x: x * 2 + 1)(1.0))


@pytest.mark.slow  # the compiler of PyTorch takes seconds to import
def test_a_tap_breaks_no_graph_of_torch():
    compiled = torch.compile(lambda x: parity.tap("x", x * 2) + 1, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_tap_costs_less_than_a_microsecond():
    x = object()
    assert min(timeit.repeat(lambda: parity.tap("x", x), number=10_000, repeat=20)) / 10_000 < 1e-6


def test_a_tap_needs_no_framework():
    text = (
        "import sys; from parity import tap; assert tap('x', 1) == 1;"
        " assert not {'torch', 'jax', 'flax', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_taps_are_rows_of_the_module_whose_code_is_running(healthy):
    assert healthy.verdict == "PASS", healthy.notes
    assert not healthy.notes
    rows = {(row.path, row.leaf): row for row in healthy.rows if row.kind == "tap"}
    assert list(rows) == [
        ("attn.rotated", "0"), ("attn.rotated", "1"), ("attn.scores", ""), ("attn.weights", ""),
    ]  # fmt: skip
    assert all(row.inclusive is None for row in rows.values())
    assert all(math.isfinite(row.exclusive.r) for row in rows.values())
    assert rows["attn.scores", ""].shape == (3, HEADS, 5, 5)
    coverage = healthy.coverage
    assert (coverage.modules, coverage.calls, coverage.matched_calls) == (5, 8, 8)


@pytest.mark.parametrize(
    ("mistakes", "expected"),
    [
        ({"scaled": False}, [("attn.scores", "between `rotated` and `scores`", "scale_or_offset")]),
        ({"masked": 2}, [("attn.scores", "between `rotated` and `scores`", "glue")]),
        ({"axis": -2}, [("attn.weights", "between `scores` and `weights`", "norm_axes")]),
        ({"interleaved": True}, [("attn.rotated", "between `qkv` and `rotated`", "rotary")]),
        (
            {"scaled": False, "axis": -2},
            [
                ("attn.scores", "between `rotated` and `scores`", "scale_or_offset"),
                ("attn.weights", "between `scores` and `weights`", "norm_axes"),
            ],
        ),
    ],
)
def test_a_mistake_is_named_at_the_tap_after_it(mistakes, expected, tmp_path):
    report = compare(*make_block(**mistakes), (X,), keep_repro=True)
    assert places(report) == expected
    assert report.verdict == "FAIL"
    assert "the code before it is off by MAE" in report.first_fault.magnitude
    assert report.first_fault.kind == "tap"
    assert report.first_fault.error_map.along[1].axis == "axis 1"  # heads are no rows of an image
    with pytest.raises(parity.InputError, match="a tap cannot be called by itself"):
        report.write_repro(tmp_path, make="a:b")


class MovedScale(Attention):
    """Divides after the tap what the reference divides before it."""

    def __call__(self, x):
        q, k, v = jnp.moveaxis(self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1), (2, 3), (0, 2))
        q, k = parity.tap("rotated", (self.rotated(q), self.rotated(k)))
        scores = parity.tap("scores", q @ jnp.swapaxes(k, 2, 3))
        scores = jnp.where(
            np.triu(np.ones((5, 5), bool), 1)[None, None], -1e9, scores / math.sqrt(4)
        )
        weights = nnx.softmax(scores)
        return self.out(jnp.swapaxes(weights @ v, 1, 2).reshape(x.shape))


def test_code_that_stands_after_the_tap_on_one_side_is_no_fault():
    report = compare(*make_block(MovedScale), (X,))
    assert not report.faults
    assert report.verdict == "WARN"
    scores = next(row for row in report.rows if row.path == "attn.scores")
    assert scores.verdict == "WARN"
    assert "what the call around it returns holds" in scores.reason
    assert report.notes == ("__call__: only the reference has tap `attn.weights`: not compared",)
    ignored = compare(*make_block(MovedScale), (X,), ignore=["attn.weights", "attn.scores"])
    assert ignored.notes == (ignored.partial,)
    assert "both sides have `attn.scores`;" in ignored.partial
    assert not [row for row in ignored.rows if row.path == "attn.scores"]


class Renamed(Attention):
    def __call__(self, x):
        return parity.tap("returned", super().__call__(x))


def test_a_tap_of_one_side_only_is_said_and_fails_nothing():
    report = compare(*make_block(Renamed), (X,))
    assert report.verdict == "WARN"
    assert report.holds
    assert report.notes == ("__call__: only the port has tap `attn.returned`: not compared",)
    assert compare(*make_block(Renamed), (X,), ignore=["attn.returned"]).verdict == "PASS"


def test_options_take_the_paths_of_taps():
    reference, port = make_block(Renamed)
    report = compare(reference, port, (X,), rename={"attn.weights": "attn.returned"})
    row = next(row for row in report.rows if row.path == "attn.weights")
    assert row.nnx_path == "attn.returned"
    assert row.reason.startswith("shape")
    for name in ("rename", "layout"):
        with pytest.raises(parity.InputError, match=rf"{name}: 'attn.wieghts' .*'attn.weights'"):
            compare(reference, port, (X,), **{name: {"attn.wieghts": "as_is"}})
    with pytest.raises(parity.InputError, match=r"ignore: 'attn.retruned' .*'attn.returned'"):
        compare(reference, port, (X,), ignore=["attn.retruned"])


def test_the_channel_of_a_tap_moves_where_the_shape_says_so():
    reference = torch_of(
        lambda self, x: torch.nn.functional.relu(parity.tap("edges", self.conv(x) * 2)),
        conv=torch.nn.Conv2d(3, 4, 1),
    )
    port = port_of(reference, lambda self, x: nnx.relu(parity.tap("edges", self.conv(x) * 2)))
    image = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
    report = compare(reference, port, (image,))
    edges = next(row for row in report.rows if row.path == "edges")
    assert edges.verdict == report.verdict == "PASS"
    assert compare(reference, port, (image,), layout={"edges": "channels_first"}).verdict == "PASS"


# ------------------------------------------------------------------------------ what is recorded


def paths(trace):
    return [(call.path, call.number) for call in trace.calls if call.tapped]


def recorded(function, *args):
    with Store() as store, jax.disable_jit():
        return capture_nnx.record(
            nnx_of(lambda _, *args: function(*args)), "__call__", args, {}, store=store
        )


def test_the_calls_of_a_tap_are_counted():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return parity.tap("y", parity.tap("y", x) + parity.tap("deep.z", {"a": x, "b": 1})["a"])

    with Store() as store:
        trace = capture_torch.record(Twice(), "__call__", (X,), {}, store=store, layout={})
        assert paths(trace) == [("y", 0), ("deep.z", 0), ("y", 1)]
        deep = trace.calls[1]
        assert [(leaf.name, leaf.value) for leaf in deep.outputs] == [("b", 1), ("a", None)]
        assert not deep.inputs
        np.testing.assert_array_equal(store.get(trace.calls[2].outputs[0].buffer), 2 * X)


def test_a_loop_of_jax_is_recorded_turn_by_turn():
    def loop(x):
        return jax.lax.scan(lambda total, row: (parity.tap("total", total + row), None), x[0], x)[0]

    trace = recorded(loop, X)
    assert paths(trace) == [("total", 0), ("total", 1), ("total", 2)]


@pytest.mark.parametrize("transform", [jax.vmap, lambda f: jax.grad(f)])
def test_what_a_transformation_hides_is_not_recorded_but_known(transform):
    trace = recorded(transform(lambda x: parity.tap("inside", x * 2)), jnp.float32(2) * jnp.ones(2)
                     if transform is jax.vmap else jnp.float32(2))  # fmt: skip
    assert not paths(trace)
    assert trace.untapped == {"inside"}


def test_taps_of_what_is_checkpointed_are_recorded():
    trace = recorded(jax.checkpoint(lambda x: parity.tap("inside", x * 2)), jnp.float32(2))
    assert paths(trace) == [("inside", 0)]


@jax.jit
def compiled_scores(q, k):
    return parity.tap("scores", jnp.einsum("bqc,bkc->bqk", q, k))


class Compiled(nnx.Module):
    def __call__(self, x):
        return compiled_scores(x[:, :4], x * 2)


class TorchCompiled(torch.nn.Module):
    tapped = True

    def forward(self, x):
        scores = x[:, :4] @ (x * 2).transpose(1, 2)
        return parity.tap("scores", scores) if self.tapped else scores


def named():
    """The reference, which has as a module what the port taps."""
    scores = torch_of(lambda _, x: x[:, :4] @ (x * 2).transpose(1, 2))
    return torch_of(lambda self, x: self.scores(x), scores=scores)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("reference", [TorchCompiled, named])
def test_what_is_compiled_is_seen_and_nothing_stays_in_its_programs(reference, warm):
    compiled_scores.clear_cache()
    before = str(jax.make_jaxpr(compiled_scores)(X, X))
    compiled_scores.clear_cache()
    if warm:
        compiled_scores(X, X * 2)
    report = parity.compare(reference(), Compiled(), (X,))
    assert [row.path for row in report.rows] == ["scores", ""]
    assert report.verdict == "PASS", report.notes
    after = jax.make_jaxpr(compiled_scores)(X, X)
    assert str(after) == before
    assert not after.effects
    compiled_scores(X, X * 2)


def test_a_module_of_the_port_stands_for_a_tap_of_the_reference():
    scores = nnx_of(lambda _, x: x[:, :4] @ jnp.swapaxes(x * 2, 1, 2))
    port = nnx_of(lambda self, x: self.scores(x), scores=scores)
    report = compare(TorchCompiled(), port, (X,))
    row = next(row for row in report.rows if row.path == "scores")
    assert (row.kind, row.verdict, row.inclusive) == ("tap", "PASS", None)
    assert report.verdict == "PASS", report.notes


class Untapped(nnx.Module):
    """Compiles itself, and what it calls there has no tap."""

    def __init__(self):
        self.scale = nnx_of(lambda _, x: x * 2)

    @nnx.jit
    def __call__(self, x):
        return self.scale(x) + 1


def test_a_tap_of_the_reference_leaves_a_compiled_port_what_it_was():
    scale = torch_of(lambda _, x: parity.tap("product", x * 2))
    reference = torch_of(lambda self, x: self.scale(x) + 1, scale=scale)
    report = compare(reference, Untapped(), (X[0],))
    assert [(row.path, row.verdict) for row in report.rows] == [("scale", "PASS"), ("", "PASS")]
    assert report.notes == ("__call__: only the reference has tap `scale.product`: not compared",)


def test_the_port_alone_names_a_module_in_its_first_compiled_run(monkeypatch):
    monkeypatch.setattr(taps, "_called", set())
    compiled_scores.clear_cache()
    report = compare(named(), Compiled(), (X,))
    assert [row.path for row in report.rows] == ["scores", ""]


def test_other_threads_and_what_fails_leave_no_trace():
    class Threads(torch.nn.Module):
        def forward(self, x):
            other = threading.Thread(target=parity.tap, args=("other", x))
            other.start()
            other.join()
            return parity.tap("own", x)

    with Store() as store:
        trace = capture_torch.record(Threads(), "__call__", (X,), {}, store=store, layout={})
    assert paths(trace) == [("own", 0)]

    class Broken(nnx.Module):
        def __call__(self, x):
            parity.tap("x", x)
            raise ZeroDivisionError

    for run in (partial(compare, Threads(), Broken(), (X,)), partial(recorded, Broken().__call__)):
        with pytest.raises((ZeroDivisionError, TypeError)):
            run()
        assert not taps._callbacks
    with taps.observed(lambda name, x: name), taps.observed(lambda name, x: x):
        assert parity.tap("a", 1) == 1
    assert not taps._callbacks


def test_a_loop_of_python_writes_its_numbers():
    reference = torch_of(lambda _, x: parity.tap("layers.*", x))

    with pytest.raises(parity.InputError, match=r"tap 'layers\.\*': a loop of the reference"):
        compare(reference, Compiled(), (X,))


@pytest.mark.parametrize("name", ["", "a..b", "a#0", 3])
def test_a_name_that_no_path_can_have(name):
    with pytest.raises(parity.InputError, match="expected a name such as"):
        recorded(lambda x: parity.tap(name, x), X)


def test_a_tap_with_the_path_of_a_module_that_is_called():
    reference = torch_of(lambda self, x: parity.tap("act", self.act(x)), act=torch.nn.ReLU())

    with pytest.raises(parity.InputError, match=r"tap 'act' has the path of a module"):
        compare(reference, Compiled(), (X,))


def test_a_part_has_the_taps_of_its_modules_only():
    reference, port = make_block(scaled=False)
    part = compare(reference, port, (X,), only=["attn"])
    assert [row.path for row in part.rows if row.kind == "tap"] == [
        "attn.rotated", "attn.rotated", "attn.scores", "attn.weights",
    ]  # fmt: skip
    assert [fault.path for fault in part.faults] == ["attn.scores"]
    shallow = compare(*make_block(), (X,), depth=1)  # whose code a tap is in is not known
    assert [row.path for row in shallow.rows] == ["norm", "attn", ""]
    assert len(shallow.notes) == 1  # that of the depth


def test_coarser_products_are_seen_at_taps(healthy):
    assert {(loss.path, loss.kind) for loss in healthy.emulations[0].losses} >= {
        ("attn.scores", "tap"), ("attn.qkv", "Linear"),
    }  # fmt: skip


def make_torch(options, seed):
    return make_block()[0]


def test_a_golden_trace_has_no_taps_and_says_so(tmp_path):
    pair = parity.Pair(
        name="block",
        make_torch=make_torch,
        make_nnx=lambda options, reference: make_block()[1],
        cases=lambda reference, options, seed: (parity.Case("call", (X,)),),
        rungs=(),
        offline=parity.Offline(lambda reference: {}, lambda settings, tensors: make_block()[1]),
    )
    record_pair(pair, tmp_path)
    report = check_trace(tmp_path, pair)
    assert report.verdict == "WARN"
    assert not report.faults
    left_out, ours = report.notes
    assert left_out == (
        "call: a golden trace has no taps: `attn.rotated`, `attn.scores`, `attn.weights` left out"
    )
    assert ours.startswith("call: only the port has tap `attn.rotated`")
    assert {row.verdict for row in report.rows} == {"PASS"}


def test_turns_are_those_of_one_call():
    def forward(_, x):
        for i in range(2):
            x = parity.tap(f"step.{i}", torch.tanh(x))
        return x

    def scanned(_, x):
        def step(x, _):
            return parity.tap("step.*", jnp.tanh(x)), None

        return jax.lax.scan(step, x, length=2)[0]

    def twice(self, x):
        return self.steps(self.steps(x))

    reference = torch_of(twice, steps=torch_of(forward))
    report = compare(reference, nnx_of(twice, steps=nnx_of(scanned)), (X,))
    assert report.verdict == "PASS", report.notes
    taps = [(row.path, row.call) for row in report.rows if row.kind == "tap"]
    assert taps == [("steps.step.0", 0), ("steps.step.1", 0),
                    ("steps.step.0", 1), ("steps.step.1", 1)]  # fmt: skip
