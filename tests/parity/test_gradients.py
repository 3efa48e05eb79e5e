"""Gradients of correct ports, and of ports whose backward code is wrong."""

from functools import partial
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity import InputError
from parity.core.tensors import Fused, Tensor
from parity.core.verdicts import of_gradient
from parity.force.roundings_torch import Roundings
from parity.gradients.noise import Subject
from parity.weights.weight_map import in_order_of_ref, make_weight_map
from tests.nets import port_of, torch_of
from tests.ports import copy_weights, nnx_of
from tests.reports import places

compare = partial(parity.compare, gradients=True, check_compiled=False)
stop = jax.lax.stop_gradient
X = np.random.default_rng(1).standard_normal((4, 5, 6)).astype(np.float32)
X[0, 0] = (1, 1, 1, -1, -1, 0.5)  # at the bounds of the clamp
IDS = np.array([[0, 3, 1, 6, 6], [2, 2, 5, 4, 0], [1, 0, 0, 3, 2], [6, 5, 4, 3, 1]])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def times(factor, x):
    """The identity, with a factor in its gradient."""
    return x


times.defvjp(lambda factor, x: (x, None), lambda factor, _, g: (factor * g,))


class TorchBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.fc = torch.nn.Linear(6, 6)
        self.act = torch.nn.ReLU(inplace=True)
        self.register_buffer("scale", torch.full((6,), 0.5))

    def forward(self, x, given, mask=None):
        h = self.act(self.fc(self.norm(x))) * self.scale
        h += x
        return h, {"mean": h.mean(1), "mask": mask, "count": given["count"] + 1}


class TorchNet(torch.nn.Module):
    """A call of a module twice, a tied weight, one that is unused, nested arguments."""

    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(7, 6)
        self.clamp = torch_of(lambda _, x: torch.clamp(x, -1, 1))
        self.round = torch_of(lambda _, x: torch.round(x))
        self.block, self.last = TorchBlock(), TorchBlock()
        self.unused = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 6)

    def forward(self, x, ids, mask=None):
        h = self.emb(ids) + self.clamp(x) + self.round(x)
        given = {"count": ids.sum(), "h": h}
        h, stats = self.block(h, given)
        h, stats = self.block(h, stats)
        h, stats = self.last(h, stats)
        self.unused(stats["mean"])
        return {"logits": self.head(h) @ self.emb.weight.T, "mean": stats["mean"], "ids": ids}


def row(vector):
    """One value for each channel."""
    return vector[...].reshape(1, 1, -1)


class Hooked(nnx.Module):
    """A mistake can be made of each of its values."""

    make = MappingProxyType({})

    def own(self, name, value):
        return self.make.get(name, lambda x: x)(value)


class Clamp(Hooked):
    def __call__(self, x):
        # the gradient of jnp.clip is a half at a bound, PyTorch's is one
        return self.own("clamp", jnp.where(jnp.abs(x) <= 1, x, jnp.sign(x)))


class Round(Hooked):
    def __call__(self, x):
        return x + stop(jnp.round(x) - x) if "through" in self.make else jnp.round(x)


class Relu(Hooked):
    def __call__(self, x):
        if "where" in self.make:
            return jnp.where(x > 0, x + 0 * jnp.sqrt(x), 0.0)
        return self.own("relu", nnx.relu(x))


class Norm(Hooked):
    def __init__(self):
        self.scale, self.bias = nnx.Param(jnp.ones(6)), nnx.Param(jnp.zeros(6))

    def __call__(self, x):
        mean = self.own("mean", x.mean(-1, keepdims=True))
        variance = self.own("variance", ((x - mean) ** 2).mean(-1, keepdims=True))
        return (x - mean) / jnp.sqrt(variance + 1e-5) * row(self.scale) + row(self.bias)


class Block(Hooked):
    def __init__(self):
        self.norm, self.act = Norm(), Relu()
        self.fc = nnx.Linear(6, 6, rngs=nnx.Rngs(0))
        self.scale = nnx.Variable(jnp.full((6,), 0.5))

    def __call__(self, x, given, mask=None):
        h = self.act(self.fc(self.own("passed", self.norm(x)))) * row(self.scale)
        h = h + self.own("residual", x)
        return h, {"mean": h.mean(1), "mask": mask, "count": given["count"] + 1}


class Net(Hooked):
    def __init__(self):
        self.emb = nnx.Embed(7, 6, rngs=nnx.Rngs(0))
        self.clamp, self.round = Clamp(), Round()
        self.block, self.last = Block(), Block()
        self.unused = nnx.Linear(6, 6, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(6, 6, rngs=nnx.Rngs(0))

    def __call__(self, x, ids, mask=None):
        h = self.own("embedded", self.emb(ids)) + self.clamp(x) + self.round(x)
        given = {"count": ids.sum(), "h": h}
        h, stats = self.block(h, given)
        h, stats = self.block(h, stats)
        h, stats = self.last(h, stats)
        self.unused(stats["mean"])
        head = self.own("head", self.head(h))
        return {"logits": head @ self.emb.embedding[...].T, "mean": stats["mean"], "ids": ids}


def make(mistakes=()):
    """Both sides, with mistakes of `Hooked` by path."""
    torch.manual_seed(0)
    reference = TorchNet().eval()
    with torch.no_grad():
        for value in reference.parameters():
            if value.ndim == 1:
                value.add_(0.2 * torch.randn(value.shape))
    port = copy_weights(reference, Net())
    for path, mistake in dict(mistakes).items():
        module = port
        for part in filter(None, path.split(".")):
            module = getattr(module, part)
        changed = type("Changed", (type(module),), {"make": mistake})
        object.__setattr__(module, "__class__", changed)
    return reference, port


@pytest.fixture(scope="module")
def models():
    return make()


@pytest.fixture(scope="module")
def report(models):
    return compare(*models, (X, IDS))


def rows(report):
    return report.table[report.table.case == "__call__/grad"]


def test_a_correct_port_passes(report):
    assert report.verdict == "PASS"
    assert not report.faults
    assert (rows(report).verdict == "PASS").all()
    assert report.coverage.complete


def test_every_input_and_parameter_has_a_row(report, models):
    table = rows(report)
    names = {f"{row.path}.{row.leaf[5:-1]}".strip(".") for row in table.itertuples()}
    parameters = {name for name, _ in models[0].named_parameters()}
    assert parameters <= names
    inside = {f"{b}.{m}.input" for b in ("block", "last") for m in ("norm", "fc", "act")}
    assert names - parameters - inside == {
        "x", "clamp.x", "round.x", "block.x", "block.given.h", "block.given.mean", "last.x",
        "last.given.mean", "unused.input", "head.input",
    }  # fmt: skip
    assert not table.duplicated(["path", "call", "leaf"]).any()
    twice = table[table.path == "block.fc"]
    assert list(zip(twice.leaf, twice.call, strict=True)) == [
        ("grad(input)", 0), ("grad(weight)", 0), ("grad(bias)", 0), ("grad(input)", 1)
    ]  # fmt: skip
    unused = table[table.path == "unused"]
    assert (unused.excl_mae == 0).all()


def test_what_is_free_running(report):
    """Of the root's inputs, and of every parameter."""
    table = rows(report)
    free = table[table.mae.notna()]
    assert len(free) == 1 + len(list(make()[0].named_parameters()))
    assert free.mae.max() < 1e-4


def test_the_forward_rows_are_those_of_a_comparison_without(report, models):
    plain = compare(*models, (X, IDS), gradients=False)
    outputs = report.table[report.table.case == "__call__"]
    assert outputs.drop(columns="gain").equals(plain.table.drop(columns="gain"))
    assert report.coverage == plain.coverage


def test_both_models_are_left_as_they_were():
    reference, port = make()
    reference.head.weight.requires_grad_(False)
    reference.head.bias.grad = torch.ones(6)
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    values = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(port)))
    attributes = [set(vars(module)) for module in reference.modules()]
    compare(reference, port, (X, IDS))
    assert all(torch.equal(before[name], now) for name, now in reference.state_dict().items())
    assert [n for n, p in reference.named_parameters() if not p.requires_grad] == ["head.weight"]
    assert [n for n, p in reference.named_parameters() if p.grad is not None] == ["head.bias"]
    assert [set(vars(module)) for module in reference.modules()] == attributes
    same = jax.tree.map(np.array_equal, values, nnx.to_pure_dict(nnx.state(port)))
    assert all(jax.tree.leaves(same))


STATISTICS = {"mean": stop, "variance": stop}
BETWEEN = "after `norm`"


MISTAKES = [
    {
        "last.act": ({"relu": stop}, "", "scale_or_offset"),
        "block.act": ({"relu": partial(times, 2.0)}, "", "scale_or_offset"),
        "round": ({"through": None}, "", "unknown"),
        "clamp": ({"clamp": partial(jnp.clip, min=-1, max=1)}, "", "clamp"),
    },
    {
        "last.act": ({"where": None}, "", "nonfinite"),
        "block.norm": (STATISTICS, "", "unknown"),
        "": ({"embedded": stop}, "after `emb`", "scale_or_offset"),
    },
    {
        "": ({"head": partial(times, 3.0)}, "after `head`", "scale_or_offset"),
        "last": ({"residual": stop}, "", "glue"),
        "block": ({"passed": stop}, BETWEEN, "scale_or_offset"),
        "block.act": ({"relu": partial(times, -1.0)}, "", "scale_or_offset"),
    },
]


@pytest.fixture(scope="module", params=MISTAKES)
def wrong(request):
    """What is wrong, and the report of it."""
    port = {path: mistake for path, (mistake, *_) in request.param.items()}
    return request.param, compare(*make(port), (X, IDS))


def test_mistakes_of_the_gradient_alone_are_named(wrong):
    mistakes, report = wrong
    assert report.verdict == "FAIL"
    assert {f.path: (f.segment, f.cause) for f in report.faults} == {
        path: (segment, cause) for path, (_, segment, cause) in mistakes.items()
    }


def test_nothing_else_fails_but_what_is_around_them(wrong):
    mistakes, report = wrong
    failing = {row.path for row in report.rows
               if row.verdict == "FAIL" and "free-running" not in row.reason}  # fmt: skip
    around = {path[:at] for path in mistakes for at, c in enumerate(f"{path}.") if c == "."}
    assert failing <= {*around, ""}


def test_two_mistakes_are_both_named_the_last_first():
    mistakes = {"block": {"passed": partial(times, 2.0)}, "last.norm": STATISTICS}
    report = compare(*make(mistakes), (X, IDS))
    assert [fault.path for fault in report.faults] == ["last.norm", "block"]
    assert report.faults[1].calls == 2
    assert "2 times the reference's explains 100 %" in report.faults[1].evidence
    outputs = report.table[report.table.case == "__call__"]
    assert set(outputs.verdict) == {"PASS"}


def plain(self, x):
    """The code of both sides."""
    return self.second(self.between(self.first(x))) + x


def same(y):
    return y


def small(between=same, ours=same, forward=plain, call=plain):
    """A reference with something between its two layers, and its port."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
    reference = torch_of(forward, first=first, second=second, between=between).eval()
    return reference, port_of(reference, call, between=ours)


def test_a_mistake_of_the_forward_code_is_named_once():
    reference, port = small(ours=stop)
    port.second.kernel[...] = port.second.kernel[...] * 1.5
    report = compare(reference, port, (X,))
    assert [(f.path, f.case, f.cause) for f in report.faults] == [
        ("second", "__call__", "weights_value"),
        ("", "__call__/grad", "scale_or_offset"),
    ]


def test_what_the_reference_detaches_the_port_must_stop():
    assert compare(*small(torch.detach, stop), (X,)).verdict == "PASS"
    report = compare(*small(torch.detach), (X,))
    assert places(report) == [("", "after `first`", "glue")]
    assert "the reference's gradient is zero everywhere" in report.first_fault.evidence


def test_an_output_that_the_reference_detaches_the_port_must_stop():
    def forward(self, x):
        h = self.first(x)
        return self.second(self.between(h)), h.detach()

    def returning(detached):
        def call(self, x):
            h = self.first(x)
            return self.second(self.between(h)), detached(h)

        return small(forward=forward, call=call)

    assert compare(*returning(stop), (X,)).verdict == "PASS"
    between = "after `first`"
    assert places(compare(*returning(same), (X,))) == [("", between, "glue")]


def loop(y):
    return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, c[1] * 1.0), (0, y))[1]


@torch.inference_mode()
def inferred(y):
    return y * 1.0


@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [
        (same, loop, "the port has no gradient: ValueError: Reverse-mode"),
        (inferred, same, "the reference has no gradient: RuntimeError"),
        (lambda y: torch.nn.functional.dropout(y, 0.5, True), same, "random"),
    ],
)
def test_what_has_no_gradient_is_unknown(theirs, ours, text):
    report = compare(*small(theirs, ours), (X,))
    assert report.verdict == "UNKNOWN"
    assert not report.faults
    assert any(text in row.reason for row in report.doubts)


def trained_otherwise(change):
    reference, port = small()
    change(reference, port)
    report = compare(reference, port, (X,))
    assert {row.verdict for row in report.rows} == {"PASS"}
    return [note.removeprefix("__call__: ") for note in report.notes]


def test_what_training_changes_on_one_side_alone_is_said():
    def loose(reference, port):
        port.first.bias = nnx.Variable(port.first.bias[...])

    def batch_stat(reference, port):
        port.second.kernel = nnx.BatchStat(port.second.kernel[...])

    def frozen(reference, port):
        reference.second.bias.requires_grad_(False)

    def all_frozen(reference, port):
        reference.requires_grad_(False)

    def twice(reference, port):
        reference.second.weight = reference.first.weight
        port.second.kernel = nnx.Param(port.first.kernel[...])

    def tied(reference, port):
        reference.second.weight = reference.first.weight
        port.second.kernel = port.first.kernel

    text = "no nnx.Param in the port, so that training leaves it"
    assert trained_otherwise(loose) == [f"`first.bias`: {text}"]
    assert trained_otherwise(batch_stat) == [f"`second.weight`: {text}"]
    (found,) = trained_otherwise(frozen)
    assert found.startswith("`second.bias`: frozen in the reference")
    (found,) = trained_otherwise(twice)
    assert found.startswith("`second.weight`: tied in the reference and held once more")
    assert trained_otherwise(tied) == trained_otherwise(all_frozen) == []


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_small_channel_of_a_gradient(factor):
    scale = np.float32([1e6, 1, 1, 1, 1, 1])
    wrong = np.float32([1, 1, 1, 1, 1, factor])

    @jax.custom_vjp
    def passed(x):
        return x

    passed.defvjp(lambda x: (x, None), lambda _, g: (g * wrong[None, None],))
    reference = torch_of(lambda _, x: x * torch.from_numpy(scale))
    report = compare(reference, nnx_of(lambda _, x: passed(x) * scale[None, None]), (X,))
    assert report.verdict == ("PASS" if factor == 1 else "WARN")


@pytest.mark.parametrize("factor", [1.0, 1.0003])
def test_a_poor_gradient_excuses_no_factor(factor):
    """The reference's gradient is a difference of numbers a thousand times its size."""
    x = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    reference = torch_of(lambda _, x: (x + 300).square().mean(-1) - (x + 300).mean(-1) ** 2)
    port = nnx_of(lambda _, x: times(factor, x).var(-1))
    report = compare(reference, port, (x,))
    (row,) = [row for row in report.rows if row.leaf == "grad(x)"]
    assert row.verdict == ("PASS" if factor == 1 else "FAIL")


def test_roundings_that_cannot_be_measured_excuse_nothing_silently(monkeypatch):
    """Whether a gradient that cancels is wrong is not known then."""

    def compared():
        return compare(*small(lambda y: y.softmax(1), lambda y: nnx.softmax(y, axis=1)), (X,))

    assert compared().verdict == "PASS"
    original = Roundings.__torch_dispatch__

    def failing(self, *args):
        raise RuntimeError("no roundings here")

    monkeypatch.setattr(Roundings, "__torch_dispatch__", failing)
    report = compared()
    monkeypatch.setattr(Roundings, "__torch_dispatch__", original)
    assert report.verdict == "UNKNOWN"
    assert "no roundings here" in report.doubts[0].reason


def test_without_any_gradient():
    report = compare(*small(), (X,), torch_method=torch.no_grad()(plain))
    assert report.verdict == "UNKNOWN"
    assert "none of its outputs depends on anything" in report.doubts[0].reason


def test_a_gradient_that_cancels_is_no_fault():
    """A bias before a softmax over the positions: its gradient is 0 but for rounding."""
    report = compare(*small(lambda y: y.softmax(1), lambda y: nnx.softmax(y, axis=1)), (X,))
    assert report.verdict == "PASS"
    table = rows(report)
    bias = table[(table.path == "first") & (table.leaf == "grad(bias)")]
    assert bias.ref_rms.item() < 1e-5  # a sum of 20 terms of size 1


def torch_keys(self, x):
    order = torch.tensor([4, 2, 0, 1, 3])  # kept for the backward pass, and no number to change
    k, v = self.k(x).index_select(1, order), x.index_select(1, order)
    return (self.q(x) @ k.mT).softmax(-1) @ v


def keys(self, x):
    p = nnx.softmax(self.q(x) @ self.k(x).mT, axis=-1)
    return p @ x + self.bias(row(self.k.bias))


@pytest.mark.parametrize("depth", [0, None])
def test_a_gradient_that_cancels_inside_a_module_compared_as_a_whole(depth):
    """The bias of the keys adds the same to all scores of a query: nothing that arrives at the
    outputs shows that its gradient is a sum that cancels.
    """
    reference = torch_of(torch_keys, q=torch.nn.Linear(6, 6), k=torch.nn.Linear(6, 6))
    right = port_of(reference, keys, bias=lambda b: 0 * b)
    report = compare(reference, right, (X,), depth=depth)
    assert set(report.table.verdict) == {"PASS"}
    name = "grad(k.bias)" if depth == 0 else "grad(bias)"
    table = rows(report)
    bias = table[table.leaf == name]
    assert bias.ref_rms.min() < 1e-5
    # the output is what it was, to the bit; the gradient of the bias is as small as 1e-3
    wrong = port_of(reference, keys, bias=lambda b: 1e-4 * (b - stop(b)))
    report = compare(reference, wrong, (X,), depth=depth)
    assert report.verdict == "FAIL"
    assert "bias" in report.first_fault.leaf


def test_code_that_asks_for_float32_has_gradients():
    """As in Llama and T5: the norm and the softmax compute in float32, whatever they are given."""
    torch.manual_seed(0)

    def forward(self, x):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (self.weight * scaled.to(x.dtype)).softmax(-1, dtype=torch.float32).to(x.dtype)

    def call(self, x):
        scaled = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
        return nnx.softmax(row(self.weight) * scaled)

    reference = torch_of(forward, weight=torch.nn.Parameter(torch.rand(6) + 0.5))
    weight = nnx.Param(jnp.asarray(reference.weight.detach().numpy()))
    report = compare(reference, nnx_of(call, weight=weight), (X,))
    assert set(report.table.verdict) == {"PASS"}


def torch_temperature():
    return torch_of(
        lambda self, x: ((x @ x.mT) * self.t).softmax(-1) @ x,
        t=torch.nn.Parameter(torch.tensor(0.5)),
    )


def temperature(factor=1.0):
    def call(self, x):
        t = self.t[...]
        t = t + (factor - 1) * (t - stop(t))
        return nnx.softmax((x @ x.mT) * t) @ x

    return nnx_of(call, t=nnx.Param(jnp.asarray(0.5)))


def test_a_single_number_has_the_roundings_of_what_it_is_a_sum_of():
    """One draw of an error divided by another is anything: R was 35 with this seed."""
    x = (np.random.default_rng(12).standard_normal((2, 32, 16)) + 1).astype(np.float32)
    report = compare(torch_temperature(), temperature(), (x,))
    assert set(report.table.verdict) == {"PASS"}
    report = compare(torch_temperature(), temperature(1.001), (x,))
    assert [(fault.path, fault.leaf) for fault in report.faults] == [("", "grad(t)")]


TORCH_SUM = torch_of(lambda _, x: torch.relu((x[..., 0] + x[..., 2]) + x[..., 1]))
SUM = nnx_of(lambda _, x: nnx.relu((x[..., 0] + x[..., 1]) + x[..., 2]))


def test_a_gradient_that_jumps_where_rounding_decides():
    """One of 20000 sums is just above 0, and is 0 in another order."""
    x = np.random.default_rng(0).standard_normal((20000, 3)).astype(np.float32)
    x[7] = (1, 3e-8, -1)
    report = compare(TORCH_SUM, SUM, (x,))
    assert report.verdict == "PASS"
    assert rows(report).excl_rel_l2.item() > 1e-3
    x[:300] = (1, 3e-8, -1)  # too many of them
    assert compare(TORCH_SUM, SUM, (x,)).verdict == "FAIL"


def test_complex_numbers():
    def theirs(y):
        z = torch.fft.fft(y)
        return (z * z).abs()

    def ours(y):
        z = jnp.fft.fft(y)
        return jnp.abs(z * z)

    assert compare(*small(theirs, ours), (X,)).verdict == "PASS"


def test_complex_outputs():
    inner = nnx_of(lambda _, input: input)
    report = compare(
        torch_of(
            lambda self, x: self.inner(torch.fft.fft(x)) * (1 + 2j), inner=torch.nn.Identity()
        ),
        nnx_of(lambda self, x: self.inner(jnp.fft.fft(x)) * (1 + 2j), inner=inner),
        (X,),
    )
    assert report.verdict == "PASS"
    assert rows(report).dtype.tolist() == ["complex64", "float32"]


COMPLEX = np.random.default_rng(5).standard_normal((4, 2), np.float32).view(np.complex64)[:, 0]


def torch_recurrence(w, x):
    state, states = 0, []
    for row in x.unbind(1):
        state = w * state + row
        states.append(state.real)
    return torch.stack(states, 1)


def recurrence(w, x):
    def step(state, row):
        state = w[None] * state + row
        return state, state.real

    start = jnp.zeros((x.shape[0], 4), jnp.complex64)
    return jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            lambda w, x: torch.fft.irfft(torch.fft.rfft(x) * w, n=6),
            lambda w, x: jnp.fft.irfft(jnp.fft.rfft(x) * row(w), n=6),
        ),
        (
            lambda w, x: (x[..., :4] * torch.exp(1j * w.angle())).imag,
            lambda w, x: (x[..., :4] * jnp.exp(1j * jnp.angle(row(w)))).imag,
        ),
        (lambda w, x: x[..., :4] * w.real, lambda w, x: x[..., :4] * row(w).real),
        (
            lambda w, x: torch_recurrence(w, x[..., :4]),
            lambda w, x: recurrence(w, x[..., :4]),
        ),
    ],
    ids=["filter", "phases", "real parts", "recurrence"],
)
def test_complex_parameters(theirs, ours):
    """The gradient of each is PyTorch's, and one that is cut off is seen."""
    own = torch.nn.Parameter(torch.from_numpy(COMPLEX.copy()))

    def report(change):
        held = nnx.Param(jnp.asarray(COMPLEX))
        call = lambda self, x: ours(change(self.w[...]), x)  # noqa: E731
        reference = torch_of(lambda self, x: theirs(self.w, x), w=own)
        return compare(reference, nnx_of(call, w=held), (X,), layout={"*": "as_is"})

    right, wrong = report(lambda w: w), report(lambda w: w.at[0].set(stop(w[0])))
    assert right.verdict == "PASS"
    assert "complex64" in rows(right).dtype.tolist()
    assert wrong.verdict == "FAIL"
    assert places(wrong)[0][0] == ""


def compiled(self, x):
    return nnx.jit(plain)(self, x)


def checkpointed(self, x):
    return nnx.remat(plain)(self, x)


def test_a_port_that_compiles_or_computes_again():
    for call in (compiled, checkpointed):
        report = compare(*small(call=call), (X,))
        assert set(rows(report).verdict) == {"PASS"}
        assert report.table.leaf.str.contains("weight").sum() == 2
    report = compare(*small(ours=stop, call=compiled), (X,))
    assert places(report)[0][:2] == ("", "after `first`")
    report = compare(*small(ours=stop, call=checkpointed), (X,))
    assert [path for path, *_ in places(report)] == [""]  # what is inside counts with the root


def test_a_module_that_the_port_has_as_a_function():
    def inlined(self, x):
        y = self.between(self.first(x))
        return y @ self.second.kernel[...] + row(self.second.bias) + x

    report = compare(*small(call=inlined), (X,))
    assert report.verdict == "PASS"
    assert {"grad(second.weight)", "grad(second.bias)"} < set(report.table.leaf)


def test_they_are_of_the_whole(models):
    with pytest.raises(InputError, match="use depth="):
        compare(*models, (X, IDS), only=["block"])


def test_less_deep(models):
    report = compare(*models, (X, IDS), depth=1)
    assert {row.verdict for row in report.rows} == {"PASS"}
    assert {"grad(norm.weight)", "grad(fc.bias)"} < set(report.table.leaf)


def test_the_files_and_the_page(tmp_path):
    report = compare(*small(ours=stop), (X,), keep_repro=True)
    written = {path.name: path.read_text() for path in report.write(tmp_path)}
    for name in ("layers.csv", "report.md", "report.html", "report.json", "junit.xml"):
        assert "__call__/grad" in written[name], name
    again = parity.Report.from_json(tmp_path)
    assert again.table.fillna(0).equals(report.table.fillna(0))
    with pytest.raises(InputError, match="the first fault is one of gradients"):
        report.write_repro(tmp_path / "repro", "a:b")


def test_a_leaf_of_the_port_in_the_order_of_the_reference():
    draw = np.random.default_rng(0)
    theirs = {name: draw.standard_normal((4, 2, 3)) for name in ("q", "k")}
    held = np.concatenate([array.transpose(2, 1, 0) for array in theirs.values()], -1)
    weight_map = make_weight_map(
        [Tensor("", name, one.shape, lambda one=one: one) for name, one in theirs.items()],
        [Tensor("", "qk", held.shape, lambda: held)],
        rules=(Fused(("q", "k"), into="qk"),),
    )
    for line in weight_map:
        array, part = in_order_of_ref(line, held)
        np.testing.assert_array_equal(array, part.of(theirs[line.name]))


def torch_around():
    return torch_of(lambda self, x: self.sum(x) * 1.0, sum=TORCH_SUM)


def make_around(factor):
    return nnx_of(lambda self, x: times(self.factor, self.sum(x)), sum=SUM, factor=factor)


def test_a_jump_excuses_no_factor():
    x = np.random.default_rng(0).standard_normal((20000, 3)).astype(np.float32)
    x[7] = (1, 3e-8, -1)
    assert compare(torch_around(), make_around(1.0), (x,)).verdict == "PASS"
    report = compare(torch_around(), make_around(1.005), (x,))
    assert [(f.path, f.cause) for f in report.faults] == [("", "scale_or_offset")]
    port = nnx_of(lambda _, x: times(1.005, nnx.relu((x[..., 0] + x[..., 1]) + x[..., 2])))
    assert compare(TORCH_SUM, port, (x,)).verdict == "FAIL"


@pytest.mark.parametrize(("wrong", "verdict"), [(same, "WARN"), (partial(times, 1.01), "FAIL")])
def test_a_line_that_stands_elsewhere_is_no_fault(wrong, verdict):
    """The factor is before a layer without a bias, not after it: nothing shows outside."""
    parts = {name: torch.nn.Linear(6, 6, bias=False) for name in ("first", "second")}
    reference = torch_of(lambda self, x: self.second(self.first(x)) * 2, **parts)
    port = port_of(reference, lambda self, x: wrong(self.second(self.first(x) * 2)))
    report = compare(reference, port, (X,))
    assert report.verdict == verdict
    assert {fault.path for fault in report.faults} == ({""} if verdict == "FAIL" else set())


def test_only_entries_that_jump_are_left_out():
    wide, jump = np.ones(20), np.array([0.01] + [1e-6] * 19)
    off = np.array([1.005] + [1] * 19)

    def r(ref, port, moved):
        subject = Subject(None, "x", "Any", np.float32(ref), np.float32(port), wide, lambda: moved)
        return subject.own.r

    assert r(wide, off, jump) == 0
    assert r(wide, off, jump / 100) > 10
    assert r(wide, 1.001 * wide, jump) > 10
    assert r(off, 1.001 * wide, jump) > 10  # the reference's own jump is no rounding
    assert r(wide, 1 + 5e-7 * off, 2e-6 * wide) < 3  # but it is if all are moved alike


def test_a_module_that_cannot_be_widened_is_left_as_it_was(monkeypatch):
    reference, port = small()
    to, calls = torch.Tensor.to, []

    def full(self, *args, **kwargs):
        if torch.float64 in args and self.ndim <= 2:
            calls.append(self)
            if len(calls) >= 3:
                raise RuntimeError("no memory")
        return to(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", full)
    assert compare(reference, port, (X,)).verdict == "UNKNOWN"
    assert {p.dtype for p in reference.parameters()} == {torch.float32}


def test_a_forward_that_is_called_directly_is_no_call():
    def forward(self, x):
        return self.second(self.first.forward(x)) + self.first(torch.sin(x))

    def call(self, x):
        y = x @ self.first.kernel[...] + row(self.first.bias)
        return self.second(y) + self.first(jnp.sin(x))

    reference, port = small(forward=forward, call=call)
    assert compare(reference, port, (X,)).verdict == "PASS"
    assert [set(vars(m)) & {"forward"} for m in reference.modules()] == [set()] * 3
    assert not any(m._forward_pre_hooks for m in reference.modules())


def test_a_tied_weight_is_judged_where_it_is_used():
    def forward(self, x):
        return self.second(self.first(x)) @ self.first.weight

    def tied(self, x):
        return self.between(self.second(self.first(x)) @ self.first.kernel[...].T)

    def tied_stopped(self, x):
        return self.second(self.first(x)) @ stop(self.first.kernel[...]).T

    report = compare(*small(forward=forward, call=tied), (X,))
    assert report.verdict == "PASS"
    shares = rows(report)[rows(report).leaf.str.contains("weight")]
    assert next(zip(shares.path, shares.leaf, strict=True)) == ("first", "grad(weight)")
    assert ("", "grad(first.weight)") in list(zip(shares.path, shares.leaf, strict=True))
    stopped = compare(*small(forward=forward, call=tied_stopped), (X,))
    assert [fault.path for fault in stopped.faults] == [""]


def test_a_tied_weight_inside_a_module_that_holds_no_other_counts_there():
    """What comes in is right, as a third makes up for a factor of 3, and the weight is not."""

    def outer(self, x):
        return self.inner(self.first(x))

    def scaled(self, x):
        return times(3.0, self.second(times(1 / 3, x)))

    torch.manual_seed(0)
    first, second = (torch.nn.Linear(6, 6, bias=bias) for bias in (True, False))
    second.weight = first.weight
    inner = torch_of(lambda self, x: self.second(x), second=second)
    tied = torch_of(outer, first=first, inner=inner)
    wrong = port_of(tied, outer, inner=port_of(inner, scaled))
    report = compare(tied, wrong, (X,))
    assert report.verdict == "FAIL"
    assert places(report) == [("inner", "", "scale_or_offset")]


def test_variables_that_the_port_shares():
    reference, port = small()
    reference.second.weight = reference.first.weight
    copy_weights(reference, port)
    port.second.kernel = port.first.kernel
    assert compare(reference, port, (X,)).verdict == "PASS"


def test_a_port_that_fails_in_the_gradient_run():
    def broken(y):
        if isinstance(y, jax.core.Tracer):
            raise RuntimeError("not traced")
        return y

    report = compare(*small(ours=broken), (X,))
    assert report.verdict == "UNKNOWN"
    assert any("not traced" in row.reason for row in report.rows)


def test_a_case_named_grad_is_none_of_gradients():
    assert of_gradient("encode/grad", "grad(x)")
    assert not of_gradient("encode/grad", "output")


def test_a_program_that_is_made_under_a_transformation_alone_hides_no_call():
    """As a resnet of `jaxvae` is: a recorded run calls its modules, a gradient compiles them."""

    def block(self, x):
        return self.act(self.fc(x))

    def whole(self, x):
        return self.head(self.block(x))

    def compiled(self, x):
        run = nnx.jit(block, graph=False) if isinstance(x, jax.core.Tracer) else block
        return run(self, x)

    tanh = torch_of(lambda _, x: torch.tanh(x))
    its_block = torch_of(block, fc=torch.nn.Linear(6, 6), act=tanh)
    reference = torch_of(whole, block=its_block, head=torch.nn.Linear(6, 6))
    act = nnx_of(lambda _, x: times(0.5, jnp.tanh(x)))
    inner = nnx_of(compiled, fc=nnx.Linear(6, 6, rngs=nnx.Rngs(0)), act=act)
    port = nnx_of(whole, block=inner, head=nnx.Linear(6, 6, rngs=nnx.Rngs(0)))
    copy_weights(reference, port)
    report = compare(reference, port, (X,))
    assert [fault.path for fault in report.faults] == ["block.act"]
