"""Ports in the styles of strangers: right ones pass, wrong ones fail at the right place."""

import functools
import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from jax._src import ad_checkpoint

import parity
from parity.capture.checkpoints import no_checkpoints
from parity.report.sections import coverage_lines
from tests.nets import port_of, ported, randomise, torch_of
from tests.ports import nnx_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 8)).astype(np.float32)


def linear(seed=0, size=8, out=None):
    torch.manual_seed(seed)
    return torch.nn.Linear(size, out or size)


def compare(reference, port, *args, **options):
    return parity.compare(reference.eval(), port, args, check_compiled=False, **options)


def places(report):
    return [(fault.path, fault.segment, fault.cause) for fault in report.faults]


# ----------------------------------------------------------- what one side lacks, and mistakes


@pytest.mark.parametrize(
    "more", [lambda y: (y, [y, 2 * y]), lambda y: {"y": y, "all": (y, y + 1)}], ids=["list", "dict"]
)
def test_a_mistake_is_explained_where_the_port_returns_less(more):
    reference = torch_of(lambda self, x: more(torch.nn.functional.silu(self.fc(x))), fc=linear())
    as_key = isinstance(more(X), dict)
    port = port_of(
        reference,
        lambda self, x: {"y": nnx.relu(self.fc(x))} if as_key else (nnx.relu(self.fc(x)),),
    )
    (fault,) = compare(
        reference, port, X, ignore=["<root>#all.*" if as_key else "<root>#1.*"]
    ).faults
    assert (fault.path, fault.cause) == ("", "activation")


@pytest.mark.parametrize("broken", ["no", "other keys", "not called"])
def test_an_ignored_output_that_the_broken_port_does_not_have(broken):
    def attend(self, x, memory):
        scores = torch.softmax(x @ self.k(memory).transpose(1, 2), -1)
        return scores @ memory, scores

    def attended(self, x, memory):
        return jax.nn.softmax(x @ self.k(memory).swapaxes(1, 2), -1) @ memory

    def call(self, x, memory):
        y = self.fc(x)
        if broken == "not called":
            return y + x
        return y + self.attn(y, memory if broken == "no" else memory[:, :2])

    inner = torch_of(attend, k=linear(1))
    reference = torch_of(
        lambda self, x, memory: (y := self.fc(x)) + self.attn(y, memory)[0],
        fc=linear(2),
        attn=inner,
    )
    place = nnx_of(attended, k=ported(inner.k))
    port = nnx_of(call, fc=ported(reference.fc), attn=place)
    report = compare(reference, port, X, X[:, ::-1] * 2, ignore=["attn#1"])
    assert report.verdict == ("PASS" if broken == "no" else "FAIL")
    assert bool(report.faults) == (broken != "no")
    if broken == "other keys":
        assert [(fault.path, fault.segment) for fault in report.faults] == [
            ("", "between `fc` and the input of `attn`")
        ]


# -------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("ignore", [["q", "k"], ["[qk]"], ["q.weight", "k.*"]])
def test_ignoring_modules_does_not_silence_their_weights(ignore):
    reference = torch_of(
        lambda self, x: self.o(torch.tanh(self.q(x)) * self.k(x)),
        q=linear(1),
        k=linear(2),
        o=linear(3),
    )
    port = port_of(reference, lambda self, x: self.o(jnp.tanh(self.q(x)) * self.k(x)))
    port.q, port.k = port.k, port.q
    report = compare(reference, port, X, ignore=ignore)
    assert report.verdict != "PASS"
    told = [*report.notes, *(fault.evidence for fault in report.faults)]
    assert any("holds the values of" in text for text in told)


# -------------------------------------------------------------------- modules that are not called


class Hidden(nnx.Module):
    def __init__(self, reference, skipped):
        self.inner = port_of(reference.inner, lambda self, x: Hidden.run(self, x, skipped))

    @staticmethod
    def run(self, x, skipped):
        y = self.one(x)
        y = y if skipped == "norm" else self.norm(y)
        return y if skipped == "two" else self.two(y)

    def __call__(self, x):
        return 2 * self.inner(x)


@pytest.mark.parametrize("skipped", ["norm", "two", ""])
def test_a_module_that_the_port_does_not_call_is_the_caller_s_fault(skipped):
    inner = torch_of(
        lambda self, x: self.two(self.norm(self.one(x))),
        one=linear(1),
        norm=torch.nn.LayerNorm(8),
        two=linear(2),
    )
    reference = randomise(torch_of(lambda self, x: 2 * self.inner(x), inner=inner))
    report = compare(reference, Hidden(reference, skipped), X)
    if not skipped:
        assert report.verdict == "PASS"
        return
    (fault,) = report.faults
    assert (fault.path, fault.cause) == ("inner", "not_called")
    text = f"the port does not call `inner.{skipped}`: leaving it out explains 100 %"
    assert fault.evidence.startswith(text)


# ------------------------------------------------------------------- what only follows a mistake


@pytest.mark.parametrize(("step", "size"), [(2, 5), (1, 3)])
def test_what_is_around_a_call_of_another_shape_is_not_at_fault(step, size):
    inner = torch_of(lambda self, x: self.fc(x)[:, :size:step], fc=linear())
    middle = torch_of(lambda self, x: 3 * self.inner(x), inner=inner)
    reference = torch_of(lambda self, x: self.middle(x) + 1, middle=middle)
    for right in (True, False):
        cut = slice(None, size if right else size - step, step)
        place = port_of(inner, lambda self, x, cut=cut: self.fc(x)[:, cut])
        outer = nnx_of(lambda self, x: 3 * self.inner(x), inner=place)
        report = compare(reference, nnx_of(lambda self, x: self.middle(x) + 1, middle=outer), X)
        found = [(fault.path, fault.cause) for fault in report.faults]
        assert found == ([] if right else [("middle.inner", "shape")])
        assert all(fault.evidence.count("instead of") == 1 for fault in report.faults)


# ------------------------------------------------------------------ one mistake made several times


class Levels(nnx.Module):
    def __init__(self, reference, wrong):
        self.layers = nnx.List([ported(layer) for layer in reference.layers])
        self.wrong = wrong

    def scaled(self, x):
        mean = jnp.mean(x, 1 if self.wrong == "axis" else -1, keepdims=True)
        return x - mean if self.wrong != "offset" else x

    def __call__(self, x):
        return sum(layer(self.scaled(jnp.sin(x * i))) for i, layer in enumerate(self.layers, 1))


@pytest.mark.parametrize(
    ("wrong", "cause"), [("offset", "glue"), ("axis", "norm_axes"), ("", None)]
)
def test_a_mistake_in_a_function_that_is_called_several_times_is_one(wrong, cause):
    def scaled(x):
        return x - x.mean(-1, keepdim=True)

    reference = torch_of(
        lambda self, x: sum(
            layer(scaled(torch.sin(x * i))) for i, layer in enumerate(self.layers, 1)
        ),
        layers=torch.nn.ModuleList([linear(seed) for seed in range(3)]),
    )
    report = compare(reference, Levels(reference, wrong), X)
    assert [fault.cause for fault in report.faults] == ([cause] if cause else [])
    if wrong:
        assert "explains 100 %" in report.faults[0].evidence


@pytest.mark.parametrize("other", [nnx.relu, jnp.tanh])
def test_the_operation_that_is_named_is_the_one_that_differs(other):
    silu, softplus = torch.nn.functional.silu, torch.nn.functional.softplus
    reference = torch_of(
        lambda self, x: self.two(softplus(self.one(silu(x)))), one=linear(1), two=linear(2)
    )
    port = port_of(reference, lambda self, x: self.two(other(self.one(nnx.silu(x)))))
    (fault,) = compare(reference, port, X).faults
    name = "ReLU" if other is nnx.relu else "tanh"
    assert fault.evidence.startswith(f"{name} instead of softplus explains")


# --------------------------------------------------------------------------------- layout


ORDERS = {"sequence first": (1, 0, 2), "channels first": (2, 0, 1)}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_arrays_of_the_caller_in_another_order_of_axes(order):
    """The reference takes them in this order, the port items first."""
    last = tuple(np.argsort(order))
    reference = torch_of(lambda self, x: self.fc(x.permute(last)).permute(order), fc=linear())
    x = np.ascontiguousarray(X.transpose(order))
    for factor in (1, 2):
        port = port_of(reference, lambda self, x, factor=factor: factor * self.fc(x))
        report = compare(reference, port, x, nnx_args=(X,))
        assert report.verdict == ("PASS" if factor == 1 else "FAIL")
        assert [fault.path for fault in report.faults] == [""] * (factor - 1)


@pytest.mark.parametrize("frames", [3, 4])
def test_videos_whose_channel_is_the_third_axis(frames):
    torch.manual_seed(0)
    reference = torch_of(
        lambda self, video: self.conv(video.transpose(1, 2)).transpose(1, 2),
        conv=torch.nn.Conv3d(3, 4, 1),
    )
    video = RNG.standard_normal((2, frames, 3, 5, 6)).astype(np.float32)
    port = port_of(reference, lambda self, video: self.conv(video))
    given = (video.transpose(0, 1, 3, 4, 2),)
    assert compare(reference, port, video, nnx_args=given).verdict == "PASS"
    port.conv.bias[...] += 1
    (fault,) = compare(reference, port, video, nnx_args=given).faults
    assert (fault.path, fault.cause) == ("conv", "weights_value")
    with pytest.raises(parity.InputError, match="nnx_args are not torch_args"):
        compare(reference, port, video, nnx_args=(2 * given[0],))
    if frames != 3:
        with pytest.raises(ValueError, match="feature dimension") as raised:
            compare(reference, port, video)
        assert any("with nnx_args=" in note for note in raised.value.__notes__)


# ------------------------------------------------------------- Linen modules that others are given


class Encoder(linen.Module):
    """Gets the table from outside, by itself or among others."""

    tables: Sequence[linen.Module]
    factor: float = 1.0

    @linen.compact
    def __call__(self, ids):
        return self.factor * linen.Dense(8, name="fc")(self.tables[0](ids))


class Outer(linen.Module):
    table: linen.Module
    factor: float = 1.0

    def setup(self):
        self.inner = Encoder([self.table], self.factor)

    def __call__(self, ids):
        return jnp.tanh(self.inner(ids))


class Both(linen.Module):
    factor: float = 1.0
    deep: bool = False

    def setup(self):
        self.shared = linen.Embed(11, 8)
        kind = Outer if self.deep else lambda table, factor: Encoder([table], factor)
        self.a, self.b = kind(self.shared, 1.0), kind(self.shared, self.factor)

    def __call__(self, ids):
        return self.a(ids) - self.b(ids[:, ::-1])


@pytest.mark.parametrize("deep", [False, True])
def test_a_linen_module_that_several_are_given(deep):
    def encoder(seed):
        inner = torch_of(lambda self, ids: self.fc(self.tables[0](ids)), fc=linear(seed))
        inner.tables = torch.nn.ModuleList([table])
        return torch_of(lambda self, ids: self.inner(ids).tanh(), inner=inner) if deep else inner

    torch.manual_seed(0)
    table = torch.nn.Embedding(11, 8)
    reference = torch_of(
        lambda self, ids: self.a(ids) - self.b(ids.flip(1)),
        shared=table,
        a=encoder(1),
        b=encoder(2),
    )
    ids = RNG.integers(0, 11, (2, 5))
    for factor in (1.0, 3.0):
        port = nnx.bridge.ToNNX(Both(factor, deep), rngs=nnx.Rngs(0)).lazy_init(jnp.asarray(ids))
        port.shared["embedding"][...] = jnp.asarray(table.weight.detach().numpy())
        for name in "ab":
            held = getattr(port, name)["inner"] if deep else getattr(port, name)
            own = getattr(reference, name).inner if deep else getattr(reference, name)
            held["fc"]["kernel"][...] = jnp.asarray(own.fc.weight.detach().numpy().T)
            held["fc"]["bias"][...] = jnp.asarray(own.fc.bias.detach().numpy())
        report = compare(reference, port, ids)
        assert report.verdict == ("PASS" if factor == 1 else "FAIL")
        wrong = "b.inner" if deep else "b"
        assert [fault.path for fault in report.faults] == ([] if factor == 1 else [wrong])


# ------------------------------------------------------------------------ references as they are


class ModelOutput(OrderedDict):
    """A dict that is indexed by name or by place, as those of transformers."""

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else [*self.values()][key]


def keywords_popped(forward):
    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        kwargs.pop("return_dict", None)
        kwargs.setdefault("scale", 3.0)
        return forward(self, *args, **kwargs)

    return wrapper


def keywords_renamed(forward):
    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        if len(args) > 2:
            raise TypeError("by keyword, please")
        kwargs["scale"] = kwargs.pop("factor", 1.0)
        return forward(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("decorator", "given"),
    [(keywords_popped, {"return_dict": True}), (keywords_renamed, {"factor": 3.0})],
)
def test_decorators_that_look_into_keywords(decorator, given):
    def forward(self, x, mask=None, scale=1.0, **kwargs):
        y = self.fc(x) * scale
        return ModelOutput(last_hidden_state=y, pooled=y[:, 0], hidden_states=(x, y))

    inner = torch_of(decorator(forward), fc=linear())
    reference = torch_of(
        lambda self, x: ModelOutput(last=self.inner(x, **given)[0].tanh()), inner=inner
    )
    for act in (jnp.tanh, jnp.sin):
        place = port_of(inner, lambda self, x: 3 * self.fc(x))
        port = nnx_of(lambda self, x, act=act: {"last": act(self.inner(x))}, inner=place)
        report = compare(reference, port, X)
        found = [(fault.path, fault.segment) for fault in report.faults]
        assert (report.verdict == "PASS") == (act is jnp.tanh)
        assert found == ([] if act is jnp.tanh else [("", "after `inner`")])


def plain_pair():
    reference = torch_of(lambda self, x: self.b(self.a(x).tanh()), a=linear(1), b=linear(2))
    return reference, port_of(reference, lambda self, x: self.b(jnp.tanh(self.a(x))))


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, functools.partial(torch.autocast, "cpu", torch.bfloat16)]
)
def test_modes_around_the_comparison(mode):
    reference, port = plain_pair()
    with mode():
        assert compare(reference, port, X).verdict == "PASS"
        port.a.bias[...] += 1
        assert [fault.path for fault in compare(reference, port, X).faults] == ["a"]


def test_autocast_in_the_forward():
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.a(x).float()

    reference = torch_of(forward, a=linear(1))
    for factor in (1, 2):
        a = ported(reference.a, dtype=jnp.bfloat16)
        port = nnx_of(lambda self, x, k=factor: k * self.a(x).astype(jnp.float32), a=a)
        assert compare(reference, port, X).verdict == ("PASS" if factor == 1 else "FAIL")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("program", [torch.jit.script, torch.compile])
def test_programs_of_pytorch(inside, program):
    reference, port = Plain(linear(1)), nnx_of(lambda self, x: jnp.tanh(self.a(x)))
    port.a = ported(reference.a)
    compiled = program(reference)
    if inside:
        compiled = torch_of(lambda self, x: 2 * self.inner(x), inner=compiled)
        port = nnx_of(lambda self, x: 2 * self.inner(x), inner=port)
    if program is torch.jit.script:
        with pytest.raises(parity.InputError, match="a module of TorchScript"):
            compare(compiled, port, X)
    else:
        assert compare(compiled, port, X).verdict == "PASS"


class Plain(torch.nn.Module):
    """A module with source code, which a compiler reads."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, x):
        return torch.tanh(self.a(x))


@pytest.mark.parametrize("carry_first", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_recurrent_net_that_returns_its_carry_first(carry_first, wrong):
    def turns(self, x):
        h, found = torch.zeros(2, 8), []
        for i in range(5):
            h = self.cell(x[:, i], h)
            found.append(h)
        return self.out(torch.stack(found, 1)), h

    def step(self, h, x):
        h = jnp.tanh(self.own(h) + self.given(x))
        return h, h

    def scanned(self, x):
        h, found = jnp.zeros((2, 8)), []
        for i in range(5):
            h, y = self.cell(h, x[:, i])
            found.append(y)
        y, h = self.out(jnp.stack(found, 1)), (found[1] if wrong else h)
        return (h, y) if carry_first else (y, h)

    cell = torch_of(
        lambda self, x, h: torch.tanh(self.own(h) + self.given(x)), own=linear(1), given=linear(2)
    )
    inner = torch_of(turns, cell=cell, out=linear(3))
    reference = torch_of(lambda self, x: (o := self.rnn(x))[0] - o[1][:, None], rnn=inner)
    rnn = nnx_of(scanned, cell=port_of(cell, step), out=ported(inner.out))
    y, h = (1, 0) if carry_first else (0, 1)
    port = nnx_of(lambda self, x: (o := self.rnn(x))[y] - o[h][:, None], rnn=rnn)
    report = compare(reference, port, X)
    assert report.verdict == ("FAIL" if wrong else "PASS")
    assert [fault.path for fault in report.faults] == ["rnn"] * wrong


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("wrong", ["", "inside", "around", "both"])
def test_outputs_of_one_shape_in_another_order_that_are_wrong(order, wrong):
    def three(self, x):
        h = torch.tanh(self.a(x))
        return h, self.b(h), h * h

    inner = randomise(torch_of(three, a=linear(1), b=linear(2)))
    reference = torch_of(
        lambda self, x: (o := self.inner(x))[0] - 2 * o[1] + torch.sin(o[2]), inner=inner
    )

    def others(self, x):
        h = (jnp.sin if wrong in ("inside", "both") else jnp.tanh)(self.a(x))
        found = h, self.b(h), h * h
        return tuple(found[i] for i in order)

    def outer(self, x):
        own = self.inner(x)
        h, y, z = (own[order.index(i)] for i in range(3))
        return h - 2 * y + (jnp.cos if wrong in ("around", "both") else jnp.sin)(z)

    place = nnx_of(others, a=ported(inner.a), b=ported(inner.b))
    report = compare(reference, nnx_of(outer, inner=place), X)
    paths = {"": [], "inside": ["inner"], "around": [""], "both": ["inner", ""]}
    found = [(fault.path, fault.segment, fault.evidence) for fault in report.faults]
    assert [path for path, *_ in found] == paths[wrong], found
    assert report.verdict == ("FAIL" if wrong else "PASS")


# -------------------------------------------------------------------- objects that calls change


class Appending:
    """Has a longer array after each call."""

    def __init__(self, empty):
        self.past = empty

    def updated(self, h, joined):
        self.past = joined([self.past, h])
        return self.past


class Listed(Appending):
    """Has one more array in a list."""

    def __init__(self, empty):
        self.past = [empty]

    def updated(self, h, joined):
        self.past.append(h)
        return joined(self.past)


class Once(Appending):
    """Keeps the first, and a flag in an object inside says that it does."""

    def __init__(self, empty):
        self.inner = Listed(empty)
        self.inner.seen = {}

    def updated(self, h, joined):
        if not self.inner.seen.get("yes"):
            self.inner.past.append(h)
            self.inner.seen["yes"] = True
        return joined([*self.inner.past, h])


class Written(Appending):
    """Is written to in place."""

    def __init__(self, empty):
        self.past, self.at = torch.zeros(empty.shape[0], 8, 8), 0

    def updated(self, h, joined):
        self.past[:, self.at : self.at + h.shape[1]] = h
        self.at += h.shape[1]
        return self.past[:, : self.at]


@pytest.mark.parametrize("ref_kind", [Appending, Listed, Once, Written])
@pytest.mark.parametrize("port_kind", [Appending, Listed])
@pytest.mark.parametrize("wrong", ["", "layer"])
def test_a_cache_that_is_an_object_is_as_it_was_when_a_call_is_made_again(
    ref_kind, port_kind, wrong
):
    def stepped(self, x, cache):
        h = cache.updated(self.a(torch.tanh(x)), lambda many: torch.cat(many, 1))
        return self.b(x + torch.sin(h).mean(1, keepdim=True))

    def both(self, x):
        caches = [ref_kind(torch.zeros(2, 0, 8)) for _ in range(2)]
        return torch.cat([self.two(self.one(part, caches[0]), caches[1])
                          for part in x.split([3, 2], 1)], 1)  # fmt: skip

    layers = [torch_of(stepped, a=linear(i), b=linear(i + 2)) for i in range(2)]
    reference = randomise(torch_of(both, one=layers[0], two=layers[1]))
    kind = Once if ref_kind is Once else port_kind

    def step(self, x, cache, own):
        h = cache.updated(self.a(jnp.tanh(x)), lambda many: jnp.concatenate(many, 1))
        return self.b(x + (jnp.cos if own else jnp.sin)(h).mean(1, keepdims=True))

    def steps(self, x):
        caches, found = [kind(jnp.zeros((2, 0, 8))) for _ in range(2)], []
        for part in (x[:, :3], x[:, 3:]):
            h = self.one(part, caches[0], False)
            found.append(self.two(h, caches[1], wrong == "layer"))
        return jnp.concatenate(found, 1)

    one, two = (nnx_of(step, a=ported(x.a), b=ported(x.b)) for x in layers)
    report = compare(reference, nnx_of(steps, one=one, two=two), X)
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    found = [(fault.path, fault.evidence) for fault in report.faults]
    assert [path for path, _ in found] == ["two"] * bool(wrong), found
    assert all("not known" not in text and "broke off" not in text for _, text in found)
    assert all(fault.lines for fault in report.faults)


# --------------------------------------------------------------------------------- checkpointed


def by_decorator(act):
    return nnx.remat(lambda self, x: x + act(self.fc(x))), lambda module, x: module(x)


def by_caller(act):
    return lambda self, x: x + act(self.fc(x)), nnx.remat(lambda module, x: module(x))


def by_jax(act):
    return lambda self, x: x + act(self.fc(x)), lambda module, x: jax.checkpoint(module)(x)


@pytest.mark.parametrize("way", [by_decorator, by_caller, by_jax])
def test_modules_under_checkpoints(way):
    blocks = [
        torch_of(lambda self, x: x + torch.tanh(self.fc(x)), fc=linear(seed)) for seed in range(2)
    ]
    reference = torch_of(
        lambda self, x: self.head(self.b(self.a(x))), a=blocks[0], b=blocks[1], head=linear(2)
    )
    for act in (jnp.tanh, jnp.sin):
        body, called = way(act)
        right, _ = way(jnp.tanh)
        port = nnx_of(
            lambda self, x, called=called: self.head(called(self.b, called(self.a, x))),
            a=port_of(blocks[0], right),
            b=port_of(blocks[1], body),
            head=ported(reference.head),
        )
        report = compare(reference, port, X)
        assert report.verdict == ("PASS" if act is jnp.tanh else "FAIL")
        assert len(report.coverage.matched) == 6
        assert [fault.path for fault in report.faults] == ([] if act is jnp.tanh else ["b"])


def test_another_jax_is_left_to_its_checkpoints(monkeypatch):
    before = ad_checkpoint._trace_to_jaxpr
    with no_checkpoints():
        patched = ad_checkpoint._trace_to_jaxpr
        with monkeypatch.context() as within:  # undone before the other patch is
            # called from a frame that names its arguments otherwise
            within.setattr(ad_checkpoint, "_trace_to_jaxpr", lambda *given: patched(*given))
            assert jax.checkpoint(jnp.sin)(1.0) == jnp.sin(1.0)
    assert ad_checkpoint._trace_to_jaxpr is before


# ------------------------------------------------------------------------- weights held twice


def tables(count):
    torch.manual_seed(0)
    found = [torch.nn.Embedding(11, 8) for _ in range(count)]
    for one in found:
        one.load_state_dict(found[0].state_dict())
    return found


@pytest.mark.parametrize("held", [1, 2, 3])
@pytest.mark.parametrize("factor", [1, 2])
def test_a_weight_that_the_reference_holds_as_copies(held, factor):
    one, two = tables(2)
    head = torch.nn.Linear(8, 11, bias=False)
    head.weight.data.copy_(one.weight)
    reference = torch_of(
        lambda self, ids: self.head(
            torch.tanh(self.src(ids).mean(1, keepdim=True) + self.tgt(ids))
        ),
        src=one,
        tgt=two,
        head=head,
    )

    def call(self, ids):
        tgt = self.a if held == 1 else self.b
        h = jnp.tanh(factor * self.a(ids).mean(1, keepdims=True) + tgt(ids))
        return self.out(h) if held == 3 else h @ self.a.embedding[...].T

    names = {"a": one, "b": two, "out": head}
    port = nnx_of(call, **{name: ported(names[name]) for name in [*names][:held]})
    report = compare(reference, port, RNG.integers(0, 11, (2, 5)))
    assert report.verdict == ("PASS" if factor == 1 else "FAIL"), report.notes
    assert [fault.path for fault in report.faults] == [""] * (factor - 1)
    assert {"src", "tgt"} < {*report.coverage.matched}


@pytest.mark.parametrize("act", [jnp.tanh, jnp.sin])
def test_a_module_that_the_port_has_as_copies(act):
    fc = linear(1)
    reference = torch_of(
        lambda self, x: self.two(torch.tanh(self.one(x))) - self.three(x),
        one=fc,
        two=linear(2),
        three=fc,
    )
    port = nnx_of(
        lambda self, x: self.two(act(self.one(x))) - self.three(x),
        **{name: ported(getattr(reference, name)) for name in ("one", "two", "three")},
    )
    report = compare(reference, port, X)
    assert report.verdict == ("PASS" if act is jnp.tanh else "FAIL"), report.notes
    right = [] if act is jnp.tanh else [("", "between `one` and the input of `two`")]
    assert [(fault.path, fault.segment) for fault in report.faults] == right


# ------------------------------------------------------------------ bfloat16 in a float32 root


@pytest.mark.parametrize("residual", [1.0, 0.0])
@pytest.mark.parametrize("cast", ["bfloat16", "half"])
def test_a_part_in_fewer_bits(residual, cast):
    low = {"bfloat16": torch.bfloat16, "half": torch.float16}[cast]
    inner = torch_of(lambda self, x: self.fc(x), fc=linear(1).to(low))
    reference = torch_of(
        lambda self, x: self.norm(self.inner(getattr(x, cast)()).to(torch.float32) + x),
        inner=inner,
        norm=torch.nn.LayerNorm(8),
    )
    kind = jnp.dtype(str(low).removeprefix("torch."))
    fc = ported(inner.fc, dtype=kind)
    port = nnx_of(
        lambda self, x: self.norm(self.inner(x).astype(jnp.float32) + residual * x),
        inner=nnx_of(lambda self, x: self.fc(x), fc=fc),
        norm=ported(reference.norm),
    )
    report = compare(reference, port, X)
    assert report.verdict == ("PASS" if residual else "FAIL"), report.doubts
    assert [fault.path for fault in report.faults] == ([] if residual else [""])


# ----------------------------------------------------------- stacks, and constants that are made


def stack_of(layers):
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(key):
        return nnx.Linear(8, 8, rngs=nnx.Rngs(key))

    found = make(jax.random.split(jax.random.key(0), len(layers)))
    for leaf, values in (("kernel", "weight"), ("bias", "bias")):
        arrays = [getattr(layer, values).detach().numpy().T for layer in layers]
        getattr(found, leaf)[...] = jnp.asarray(np.stack(arrays))
    return found


@pytest.mark.parametrize("spoiled", [None, 0, 2])
def test_two_stacks_of_equal_sizes(spoiled):
    def turns(layers, x):
        for layer in layers:
            x = x + torch.tanh(layer(x))
        return x

    reference = torch_of(
        lambda self, x: turns(self.decoder, torch.sin(turns(self.encoder, x))),
        encoder=torch.nn.ModuleList([linear(seed) for seed in range(3)]),
        decoder=torch.nn.ModuleList([linear(seed) for seed in range(3, 6)]),
    )

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def scanned(x, layer):
        return x + jnp.tanh(layer(x))

    port = nnx_of(
        lambda self, x: scanned(jnp.sin(scanned(x, self.down)), self.up),
        down=stack_of(reference.encoder),
        up=stack_of(reference.decoder),
    )
    if spoiled is not None:
        port.up.kernel[...] = port.up.kernel[...].at[spoiled].multiply(1.5)
    report = compare(reference, port, X)
    assert report.verdict == ("PASS" if spoiled is None else "FAIL"), report.notes
    wrong = [] if spoiled is None else [(f"decoder.{spoiled}", "weights_value")]
    assert [(fault.path, fault.cause) for fault in report.faults] == wrong


@pytest.mark.parametrize("constant", ["positions", "decay"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_constant_of_the_size_of_a_weight_that_the_port_computes(constant, wrong):
    values = {"positions": torch.arange(8), "decay": 0.5 ** torch.arange(8.0)}[constant]
    inner = torch_of(lambda self, x: x + self.table)
    inner.register_buffer("table", values, persistent=False)
    reference = torch_of(
        lambda self, x: self.norm(self.inner(self.fc(x))),
        inner=inner,
        norm=torch.nn.LayerNorm(8),
        fc=linear(),
    )
    own = jnp.asarray(values.numpy())[None, None, :: -1 if wrong else 1]
    port = nnx_of(
        lambda self, x: self.last(self.first(x) + own),
        first=ported(reference.fc),
        last=ported(reference.norm),
    )
    report = compare(reference, port, X)
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    assert [fault.path for fault in report.faults] == [""] * wrong


# ------------------------------------------------------------- arguments that mean something else


@pytest.mark.parametrize("kind", ["half", "lengths first"])
def test_arrays_of_another_name_and_meaning_keep_the_port_s_values(kind):
    if kind == "half":
        given = torch.from_numpy(X[::-1].copy())
        inner = torch_of(lambda self, x, shift: self.fc(x) + shift, fc=linear())
        place = port_of(inner, lambda self, x, half: self.fc(x) + 2 * half)
        port = nnx_of(lambda self, x: self.inner(x, jnp.asarray(X[::-1]) / 2), inner=place)
    else:
        given = torch.tensor([[0.0, 0, 0, -1e4, -1e4], [0, 0, 0, 0, 0]])[:, None]
        inner = torch_of(lambda self, x, mask: torch.softmax(self.fc(x) + x @ x.mT @ x, 1)
                         * mask.exp().mT, fc=linear())  # fmt: skip

        def counted(self, lengths, y):
            seen = (jnp.arange(5)[None] < lengths[:, None])[..., None]
            return jax.nn.softmax(self.fc(y) + y @ y.swapaxes(1, 2) @ y, 1) * seen

        place = port_of(inner, counted)
        port = nnx_of(lambda self, x: self.inner(jnp.asarray([3.0, 5.0]), x), inner=place)
    reference = torch_of(lambda self, x: self.inner(x, given), inner=inner)
    report = compare(reference, port, X)
    assert report.verdict == "PASS", report.notes
    assert ("inner" in report.coverage.matched) == (kind == "lengths first")
    place.fc.bias[...] += 1
    assert [fault.path for fault in compare(reference, port, X).faults] == ["inner.fc"]


# --------------------------------------------------------------------- masks that are widened later


def widened(mask):
    return (1.0 - mask[:, None, None, :]) * -1e9


@pytest.mark.parametrize("given", ["items", "additive", "boolean"])
def test_a_mistake_in_each_layer_that_is_handed_another_mask(given):
    """The reference widens the mask before its layers, the port inside of each."""

    def attend(self, x, mask):
        q, v = (m(x).unflatten(-1, (2, 4)).transpose(1, 2) for m in (self.q, self.v))
        return x + (torch.softmax(q @ q.mT / 2 + mask, -1) @ v).transpose(1, 2).flatten(2)

    def turns(self, x, mask):
        for layer in self.layers:
            x = layer(x, widened(mask))
        return x

    def attended(self, x, mask):
        if given == "boolean":
            mask = jnp.where(mask[:, None], 0.0, -1e9)
        else:
            mask = widened(mask) if given == "items" else mask[:, None]
        q, v = (m(x).reshape(2, 5, 2, 4).swapaxes(1, 2) for m in (self.q, self.v))
        y = jax.nn.softmax(q @ q.swapaxes(2, 3) / self.size + mask, -1) @ v
        return x + y.swapaxes(1, 2).reshape(x.shape)

    def call(self, x, mask):
        handed = {"items": mask, "additive": widened(mask)[:, 0], "boolean": mask[:, None] > 0}
        for layer in self.layers:
            x = layer(x, handed[given])
        return x

    layers = [torch_of(attend, q=linear(i), v=linear(i + 5)) for i in range(2)]
    reference = torch_of(turns, layers=torch.nn.ModuleList(layers))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.float32)
    for size in (2, 3):
        own = nnx.List([port_of(layer, attended, size=size) for layer in layers])
        report = compare(reference, nnx_of(call, layers=own), X, mask, diagnosis_seconds=0)
        assert report.verdict == ("PASS" if size == 2 else "FAIL"), report.notes
        assert report.coverage.inlined == {}
        found = [fault.path for fault in report.faults]
        assert found == ([] if size == 2 else ["layers.0", "layers.1"])


@pytest.mark.parametrize("handed", ["angles", "complex", "parts"])
def test_a_mistake_in_each_layer_that_is_handed_another_rotation(handed):
    angles = torch.arange(5)[:, None] * 10.0 ** -torch.arange(2)
    own = jnp.asarray(angles.numpy())

    def turn(self, x, turned):
        h = torch.view_as_complex(self.fc(x).unflatten(-1, (2, 2, 2)).contiguous())
        return x + torch.view_as_real(h * turned).flatten(2)

    def turns(self, x):
        turned = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        return self.two(self.one(x, turned), turned)

    def turned(self, x, at):
        if handed == "angles":
            at = jnp.exp(1j * at)[None, :, None]
        elif handed == "parts":
            at = at[0] + 1j * at[1]
        h = self.fc(x).reshape(2, 5, 2, 2, 2)
        h = (h[..., 0] + 1j * h[..., 1]) * (jnp.conj(at) if self.back else at)
        return x + jnp.stack([h.real, h.imag], -1).reshape(x.shape)

    def call(self, x):
        at = {
            "angles": own,
            "complex": jnp.exp(1j * own)[None, :, None],
            "parts": jnp.stack([jnp.cos(own), jnp.sin(own)])[:, None, :, None],
        }[handed]
        return self.two(self.one(x, at), at)

    one, two = (torch_of(turn, fc=linear(i)) for i in range(2))
    reference = torch_of(turns, one=one, two=two)
    for back in (False, True):
        parts = {n: port_of(m, turned, back=back) for n, m in (("one", one), ("two", two))}
        report = compare(reference, nnx_of(call, **parts), X)
        found = [(fault.path, fault.cause) for fault in report.faults]
        assert report.verdict == ("FAIL" if back else "PASS"), report.notes
        assert found == ([("one", "rotary"), ("two", "rotary")] if back else [])


# ------------------------------------------------------------------------------ names and places


@pytest.mark.parametrize("order", [1, -1])
def test_containers_and_what_they_hold_have_other_names(order):
    """With nothing said, and with what could be said, in any order."""

    def step(self, x):
        return x + self.gamma * self.mix(self.pre(x))

    def steps(self, x):
        for one in self.steps if hasattr(self, "steps") else self.blocks:
            x = one(x)
        return x

    def made(seed):
        one = torch_of(step, pre=torch.nn.LayerNorm(8), mix=linear(seed))
        one.gamma = torch.nn.Parameter(torch.ones(8))
        return one

    def own(self, x):
        return x + self.factor[...].reshape(1, 1, -1) * self.dense(self.norm_in(x))

    inner = torch_of(steps, steps=torch.nn.ModuleList([made(seed) for seed in range(2)]))
    reference = randomise(torch_of(lambda self, x: self.body(x), body=inner))
    names = {"": "", ".pre": ".norm_in", ".mix": ".dense", ".gamma": ".factor"}
    rename = {f"body.steps.*{a}": f"blocks.*{b}" for a, b in names.items()}
    rename = dict([*rename.items()][::order])
    for epsilon in (1e-5, 1e-2):
        blocks = [
            nnx_of(
                own,
                norm_in=ported(one.pre, epsilon=epsilon if i == 1 else 1e-5),
                dense=ported(one.mix),
                factor=nnx.Param(jnp.asarray(one.gamma.detach().numpy())),
            )
            for i, one in enumerate(inner.steps)
        ]
        port = nnx_of(steps, blocks=nnx.List(blocks))
        wrong = [] if epsilon == 1e-5 else ["body.steps.1.pre"]
        for options in ({}, {"rename": rename}):
            report = compare(reference, port, X, **options)
            assert [fault.path for fault in report.faults] == wrong
            assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
            assert "body.steps.1.mix" in report.coverage.matched


@pytest.mark.parametrize("flat", ["reference", "port"])
@pytest.mark.parametrize("counts", [(2, 3), (1, 1, 2)], ids=str)
def test_stages_of_blocks_and_one_flat_list(counts, flat):
    def chained(self, x):
        for stage in self.stages:
            for one in stage if hasattr(stage, "__iter__") else [stage]:
                x = one(x)
        return x

    def grouped(kind, many):
        ends = np.cumsum([0, *counts])
        return kind([kind(many[a:b]) for a, b in pairwise(ends)])

    blocks = [
        torch_of(lambda self, x: x + self.b(torch.tanh(self.a(x))), a=linear(i), b=linear(50 + i))
        for i in range(sum(counts))
    ]
    own = [
        nnx_of(
            lambda self, x: x + self.second(jnp.tanh(self.first(x))),
            first=ported(block.a),
            second=ported(block.b),
        )
        for block in blocks
    ]
    listed = torch.nn.ModuleList
    reference = torch_of(
        chained, stages=listed(blocks) if flat == "reference" else grouped(listed, blocks)
    )
    port = nnx_of(chained, stages=nnx.List(own) if flat == "port" else grouped(nnx.List, own))
    assert compare(reference, port, X).verdict == "PASS"
    own[counts[0]].second.bias[...] += 1  # the first block of the second stage
    (fault,) = compare(reference, port, X).faults
    place = f"stages.{counts[0]}.b" if flat == "reference" else "stages.1.0.b"
    assert (fault.path, fault.cause) == (place, "weights_value")


def looped(self, x):
    for one in self.layers:
        x = one(x)
    return x


class Holder(torch.nn.Module):
    """Of layers, which others call."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def __iter__(self):
        return iter((self.first, self.second))


def with_idle(layer):
    drop_path = torch_of(lambda self, x: x * torch.rand(1))
    return torch_of(lambda self, x: self.fc(x), fc=layer, act=torch.nn.ReLU(), drop_path=drop_path)


UNCALLED = {
    "layers by name": lambda one, two: torch_of(
        lambda self, x: self.layers[1](self.layers.first(x)),
        layers=torch.nn.Sequential(OrderedDict(first=one, second=two)),
    ),
    "a holder": lambda one, two: torch_of(looped, layers=Holder(one, two)),
    "a part of a Sequential": lambda one, two: torch_of(
        lambda self, x: self.layers[:1](x) * 0 + self.layers[1](self.layers[0](x)),
        layers=torch.nn.Sequential(one, two),
    ),
    "inside": lambda one, two: torch_of(
        looped, layers=torch.nn.ModuleList([with_idle(one), with_idle(two)])
    ),
    "pools": lambda one, two: torch_of(
        looped,
        layers=torch.nn.ModuleList([one, two]),
        pool=torch.nn.AvgPool2d(2),
        drop=torch.nn.Dropout2d(),
    ),
}


@pytest.mark.parametrize("kind", UNCALLED)
def test_modules_that_hold_nothing_of_their_own_and_never_run(kind):
    reference = UNCALLED[kind](linear(1), linear(2))
    layers = nnx.List([ported(linear(1)), ported(linear(2))])
    if kind == "a part of a Sequential":
        port = nnx_of(
            lambda self, x: self.layers[0](x) * 0 + self.layers[1](self.layers[0](x)),
            layers=layers,
        )
    else:
        port = nnx_of(looped, layers=layers)
    report = compare(reference, port, X)
    assert (report.verdict, report.notes) == ("PASS", ())
    layers[1].bias[...] += 1
    (fault,) = compare(reference, port, X).faults
    assert fault.path.startswith("layers.")
    assert fault.cause == "weights_value"


class Evaluated(torch.nn.Module):
    """Does nothing in evaluation."""

    def forward(self, x):
        return x * torch.rand(1) if self.training else x


@pytest.mark.parametrize(
    ("drop", "kept"),
    [(torch.nn.Dropout1d(0.3), 0), (torch.nn.Identity(), 2), (Evaluated(), 1)],
    ids=["Dropout1d", "Identity", "Evaluated"],
)
def test_a_module_that_does_nothing_is_called_once_for_three_times(drop, kept):
    def forward(self, x):
        h = self.drop(torch.tanh(self.a(x)))
        h = self.drop(self.b(h)) + x
        return self.drop(torch.sin(self.c(h)))

    def call(self, x):
        first, second, third = (self.drop if i == kept else (lambda y: y) for i in range(3))
        h = first(self.act(self.a(x)))
        h = second(self.b(h)) + x
        return third(jnp.sin(self.c(h)))

    reference = torch_of(forward, a=linear(1), b=linear(2), c=linear(3), drop=drop)
    parts = {name: ported(getattr(reference, name)) for name in "abc"}
    parts["drop"] = nnx.Dropout(0.3, deterministic=True)
    assert compare(reference, nnx_of(call, act=jnp.tanh, **parts), X).verdict == "PASS"
    (fault,) = compare(reference, nnx_of(call, act=jnp.sin, **parts), X).faults
    assert fault.segment == "between `a` and the input of `b`"


# -------------------------------------------------------------------- weights of several axes


@pytest.mark.parametrize("shape", [(4, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("ignore", [[], ["q", "k"]], ids=str)
def test_exchanged_kernels_that_are_split_into_heads(shape, ignore):
    reference = torch_of(
        lambda self, x: self.o(torch.tanh(self.q(x)) * self.k(x)),
        q=linear(1),
        k=linear(2),
        o=linear(3),
    )

    def split(layer):
        found = nnx.LinearGeneral(8, shape, rngs=nnx.Rngs(0))
        found.kernel[...] = ported(layer).kernel[...].reshape(8, *shape)
        found.bias[...] = ported(layer).bias[...].reshape(shape)
        return found

    port = nnx_of(
        lambda self, x: self.o((jnp.tanh(self.q(x)) * self.k(x)).reshape(x.shape)),
        q=split(reference.q),
        k=split(reference.k),
        o=ported(reference.o),
    )
    port.q.kernel, port.k.kernel = port.k.kernel, port.q.kernel
    report = compare(reference, port, X, ignore=ignore)
    wrong = [(one.name, one.finding) for one in report.weights if one.cause]
    assert wrong == [
        ("q.weight", "holds the values of k.weight"),
        ("k.weight", "holds the values of q.weight"),
    ]
    if ignore:
        assert report.verdict == "WARN"
        assert any("holds the values of" in note for note in report.notes)
    else:
        found = [(fault.path, fault.cause) for fault in report.faults]
        assert found == [("q", "weights_swapped"), ("k", "weights_swapped")]


def test_a_kernel_whose_heads_and_sizes_are_exchanged():
    reference = torch_of(
        lambda self, x: self.o(torch.tanh(self.q(x)) * self.k(x)),
        q=linear(1),
        k=linear(2),
        o=linear(3),
    )
    q = nnx.LinearGeneral(8, (4, 2), rngs=nnx.Rngs(0))
    q.kernel[...] = ported(reference.q).kernel[...].reshape(8, 2, 4).swapaxes(1, 2)
    q.bias[...] = ported(reference.q).bias[...].reshape(4, 2)
    port = port_of(
        reference,
        lambda self, x: self.o(jnp.tanh(self.q(x).reshape(x.shape)) * self.k(x)),
        q=q,
    )
    (fault,) = compare(reference, port, X).faults
    assert fault.cause == "weights_layout"
    assert fault.evidence.startswith("q.weight: its rows are in another order")


def test_a_leaf_without_values_that_nothing_uses():
    reference = torch_of(lambda self, x: self.fc(x), fc=linear())
    spare = nnx.eval_shape(lambda: nnx.Embed(11, 8, rngs=nnx.Rngs(0)))
    port = nnx_of(lambda self, x: self.fc(x), fc=ported(reference.fc), spare=spare)
    with pytest.raises(parity.InputError, match=r"spare\.embedding of the port holds no values"):
        compare(reference, port, X)


class Half(torch.nn.Module):
    def __init__(self, seed, width, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(linear(seed + i, width) for i in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize(
    ("width", "first", "inner", "second"),
    [(8, 2, 4, 4), (8, 4, 2, 4), (8, 1, 4, 2)],
    ids=["kernels of a size", "biases of a size", "a bias as a stack"],
)
@pytest.mark.parametrize("wrong", [False, True])
def test_stacks_of_two_halves_that_have_as_many_numbers(width, first, inner, second, wrong):
    """No tensor is taken for one of the other half, also where its values are wrong."""
    reference = torch_of(
        lambda self, x: self.dec(self.enc(x)[..., :inner]),
        enc=Half(0, width, first),
        dec=Half(20, inner, second),
    )

    def leaf(half, name):
        arrays = [getattr(layer, name).detach().numpy().T for layer in half.layers]
        return nnx.Param(jnp.asarray(np.stack(arrays)))

    def run(x, half):
        for kernel, bias in zip(half.kernel[...], half.bias[...], strict=True):
            x = jnp.tanh(x @ kernel + bias.reshape(1, 1, -1))
        return x

    halves = {
        name: nnx_of(None, kernel=leaf(half, "weight"), bias=leaf(half, "bias"))
        for name, half in (("up", reference.enc), ("down", reference.dec))
    }
    port = nnx_of(lambda self, x: run(run(x, self.up)[..., :inner], self.down), **halves)
    if wrong:
        port.down.bias[...] = port.down.bias[...].at[1].add(1)
    report = compare(reference, port, X)
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    for line in report.weights:
        assert line.nnx_name.startswith("up." if line.name.startswith("enc.") else "down.")
        assert bool(line.finding) == (wrong and line.name == "dec.layers.1.bias")


@pytest.mark.parametrize("wrong", ["", "never loaded", "code"])
def test_what_is_wrong_in_layers_that_are_scanned(wrong):
    @functools.partial(nnx.vmap, in_axes=0, out_axes=0)
    def make(key):
        rngs = nnx.Rngs(key)
        norm = nnx.LayerNorm(8, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        return nnx_of(call, ln=norm, dense=nnx.Linear(8, 8, rngs=rngs))

    def call(self, x):
        return x + (nnx.relu if wrong == "code" else nnx.silu)(self.dense(self.ln(x)))

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def scanned(x, layer):
        return layer(x)

    def block(seed):
        return torch_of(
            lambda self, x: x + torch.nn.functional.silu(self.fc(self.norm(x))),
            norm=torch.nn.LayerNorm(8),
            fc=linear(seed),
        )

    blocks = torch.nn.ModuleList([block(0), block(1)])
    reference = randomise(
        torch_of(lambda self, x: self.blocks[1](self.blocks[0](x)), blocks=blocks)
    )
    layers = make(jax.random.split(jax.random.key(0), 2))
    leaves = {
        "norm.weight": layers.ln.scale,
        "norm.bias": layers.ln.bias,
        "fc.weight": layers.dense.kernel,
        "fc.bias": layers.dense.bias,
    }
    for name, leaf in leaves.items():
        leaf[...] = jnp.stack([b.get_parameter(name).detach().numpy().T for b in blocks])
    if wrong == "never loaded":
        layers.ln.scale[...] = layers.ln.scale[...].at[1].set(1.0)
    report = compare(reference, nnx_of(lambda self, x: scanned(x, self.all), all=layers), X)
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    assert [(fault.path, fault.cause) for fault in report.faults] == {
        "": [],
        "never loaded": [("blocks.1.norm", "weights_missing")],
        "code": [("blocks.0", "activation"), ("blocks.1", "activation")],
    }[wrong]


# -------------------------------------------------------------------------------- axes and doors


@pytest.mark.parametrize(
    ("layer", "heads"),
    [(torch.nn.LayerNorm(4), 2), (torch.nn.Linear(4, 4), 3)],
    ids=["norm", "linear"],
)
def test_heads_before_positions_in_the_reference_and_behind_them_in_the_port(layer, heads):
    def forward(self, x):
        h = self.each(self.q(x).unflatten(-1, (heads, 4)).transpose(1, 2))
        return torch.sin(h).transpose(1, 2).flatten(2)

    reference = randomise(torch_of(forward, q=linear(1, 8, 4 * heads), each=layer))
    for act in (jnp.sin, jnp.tanh):
        port = port_of(
            reference,
            lambda self, x, act=act: act(self.each(self.q(x).reshape(2, 5, heads, 4))).reshape(
                2, 5, -1
            ),
        )
        report = compare(reference, port, X)
        assert report.coverage.matched == ("", "q", "each")
        assert report.verdict == ("PASS" if act is jnp.sin else "FAIL")
        found = [(fault.path, fault.segment) for fault in report.faults]
        assert found == ([] if act is jnp.sin else [("", "after `each`")])


@pytest.mark.parametrize(
    "conv",
    [torch.nn.Conv1d(3, 4, 3, stride=2, padding=1), torch.nn.Conv1d(3, 6, 2)],
    ids=["stride", "window"],
)
def test_sounds_whose_channel_is_the_second_axis(conv):
    reference = randomise(
        torch_of(lambda self, sound: torch.sin(self.conv(sound)).transpose(1, 2), conv=conv)
    )
    port = port_of(reference, lambda self, sound: jnp.sin(self.conv(sound)))
    x = RNG.standard_normal((2, 3, 9)).astype(np.float32)
    ways = ({}, {"layout": {"<root>#sound": "channels_first"}}, {"nnx_args": (x.swapaxes(1, 2),)})
    assert [compare(reference, port, x, **way).verdict for way in ways] == ["PASS"] * 3
    port.conv.bias[...] += 1
    (fault,) = compare(reference, port, x).faults
    assert (fault.path, fault.cause) == ("conv", "weights_value")


def doors():
    video = RNG.standard_normal((2, 3, 4, 5, 6)).astype(np.float32)
    image = video[:, :, 0]

    def repeated(x):
        return jnp.tanh(x.repeat(2, 1).repeat(2, 2)).transpose(0, 3, 1, 2)

    return {
        "video": (
            video,
            torch.nn.Conv3d(3, 4, 2),
            lambda y: y,
            lambda self, x: jnp.moveaxis(self.conv(jnp.moveaxis(x, 1, -1)), -1, 1),
        ),
        "tokens": (
            image,
            torch.nn.Conv2d(3, 4, 2, 2),
            lambda y: y.flatten(2).transpose(1, 2),
            lambda self, x: self.conv(x.transpose(0, 2, 3, 1)).reshape(2, -1, 4),
        ),
        "twice the size": (
            image,
            torch.nn.Conv2d(3, 4, 3, padding=1),
            lambda y: torch.tanh(torch.nn.functional.interpolate(y, scale_factor=2)),
            lambda self, x: repeated(self.conv(x.transpose(0, 2, 3, 1))),
        ),
    }


@pytest.mark.parametrize("kind", doors())
def test_a_port_that_turns_what_it_is_given_itself(kind):
    x, conv, behind, call = doors()[kind]
    reference = torch_of(lambda self, x: behind(self.conv(x)), conv=conv)
    port = port_of(reference, call)
    assert compare(reference, port, x).verdict == "PASS"
    port.conv.bias[...] += 1
    (fault,) = compare(reference, port, x).faults
    assert (fault.path, fault.cause) == ("conv", "weights_value")


@pytest.mark.parametrize("kind", ["by name", "a list", "longer with each"])
def test_caches_that_only_the_port_returns_are_one_line(kind):
    layers = [linear(seed) for seed in range(3)]
    blocks = [torch_of(lambda self, x: x + torch.tanh(self.fc(x)), fc=layer) for layer in layers]
    reference = torch.nn.Sequential(*blocks)

    def one(self, x, cache=()):
        h = self.fc(x)
        kept = {
            "by name": {"h": h, "more": {"x": x, "twice": h * 2}},
            "a list": [h, x[:, -1:]],
            "longer with each": (*cache, h, x),
        }
        return x + self.act(h), kept[kind]

    def call(self, x):
        cache = ()
        for block in self.blocks:
            x, cache = block(x, cache)
        return x

    for act in (jnp.tanh, jnp.sin):
        acts = [jnp.tanh, jnp.tanh, act]
        parts = [nnx_of(one, fc=ported(m), act=a) for m, a in zip(layers, acts, strict=True)]
        report = compare(reference, nnx_of(call, blocks=nnx.List(parts)), X)
        lines = [line for line in coverage_lines(report.coverage) if "only the port" in line]
        assert len(lines) == 1
        assert "`0#1.h`" in lines[0] if kind == "by name" else "`0#1.0`" in lines[0]
        assert report.doubts == ()
        assert report.verdict == ("PASS" if act is jnp.tanh else "FAIL"), report.notes
        assert [fault.path for fault in report.faults] == ([] if act is jnp.tanh else ["2"])


# ------------------------------------------------------------------------ what is run, and words


DEFAULT_TYPE = {
    "product": (lambda x: x @ torch.eye(8), lambda x: x),
    "function": (
        lambda x: torch.nn.functional.linear(x, torch.ones(8, 8).tril()),
        lambda x: jnp.cumsum(x, -1),
    ),
    "copied": (lambda x: torch.zeros(2, 5, 8).index_copy_(1, torch.arange(5), x), lambda x: x),
    "largest": (
        lambda x: torch.full((8,), torch.finfo(x.dtype).max).clamp(max=2) * x,
        lambda x: 2 * x,
    ),
}


@pytest.mark.parametrize("made", DEFAULT_TYPE)
def test_code_that_runs_in_float64_only_where_that_is_the_default_type(made):
    theirs, ours = DEFAULT_TYPE[made]
    reference = torch_of(lambda self, x: torch.sigmoid(theirs(self.fc(x))), fc=linear())
    for act in (nnx.sigmoid, nnx.hard_sigmoid):
        report = compare(
            reference, port_of(reference, lambda self, x, a=act: a(ours(self.fc(x)))), X
        )
        assert report.doubts == ()
        assert report.verdict == ("PASS" if act is nnx.sigmoid else "FAIL")


SLOW = []


@torch.library.custom_op("strangers::slow", mutates_args=())
def slow(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A convolution of each channel along positions, which is listed."""
    SLOW.append(x.dtype)
    return torch.nn.functional.conv1d(x.mT, table, padding=4, groups=8).mT.contiguous()


@pytest.mark.parametrize("place", ["start", "middle", "module"])
def test_what_stands_before_a_change_is_not_run_again(place):
    def forward(self, x):
        h = x if place == "start" else torch.sin(x)
        h = self.inner(h) if place == "module" else slow(h, self.table)
        for _ in range(4):
            h = torch.sigmoid(h) + x
        return h

    def own(self, x):
        return jax.lax.conv_general_dilated(
            x, self.table[...], (1,), [(4, 4)], dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=8, precision="highest",
        )  # fmt: skip

    def call(self, x):
        h = x if place == "start" else jnp.sin(x)
        h = self.inner(h) if place == "module" else own(self, h)
        for _ in range(4):
            h = jax.nn.sigmoid(h) + x
        return h + self.off * jnp.cos(50 * h)

    torch.manual_seed(0)
    table = torch.nn.Parameter(torch.randn(8, 1, 9))
    leaf = nnx.Param(jnp.asarray(table.detach().numpy().transpose(2, 1, 0)))
    inside = place == "module"
    inner = torch_of(lambda self, x: slow(x, self.table), table=table)
    reference = torch_of(forward, **({"inner": inner} if inside else {"table": table}))
    runs = []
    for off in (0.0, 0.01):
        parts = {"inner": nnx_of(own, table=leaf)} if inside else {"table": leaf}
        SLOW.clear()
        report = compare(reference, nnx_of(call, off=off, **parts), X)
        runs.append(len(SLOW))
        assert report.verdict == ("FAIL" if off else "PASS")
    (tried,) = re.findall(r"\((\d+) tried\)", report.first_fault.evidence)
    assert int(tried) > 4
    assert runs[1] <= runs[0] + 3, runs


@pytest.mark.parametrize("kind", ["no counterpart", "shape", "factor"])
def test_weights_that_differ_are_not_said_to_be_all_where_something_fails(kind):
    parts = {name: linear(seed) for seed, name in enumerate("abc")}
    more = {"idle": linear(4)}
    extra = kind == "no counterpart"
    reference = torch_of(
        lambda self, x: self.b(torch.tanh(self.a(x))) + (0 * self.c(x) if extra else 0),
        **(parts if extra else {"a": parts["a"], "b": parts["b"]}),
        **more,
    )

    def call(self, x):
        y = self.b(jnp.tanh(self.a(x)))
        return y[:, :4] if kind == "shape" else y * (2 if kind == "factor" else 1)

    port = nnx_of(call, **{n: ported(reference.get_submodule(n)) for n in ("a", "b", "idle")})
    port.idle.bias[...] += 1
    report = compare(reference, port, X)
    assert report.verdict == "FAIL"
    (note,) = [note for note in report.notes if "not the reference's" in note]
    assert "idle.bias" in note
    assert "no call fails" not in note


@pytest.mark.parametrize("large", [0.1, -1.0])
@pytest.mark.parametrize("count", [1, 3])
def test_a_small_channel_is_not_said_to_be_alone_where_large_ones_are_off(count, large):
    x = RNG.standard_normal((40, count)).astype(np.float32)
    reference = torch_of(lambda _, x: torch.cat([x * 1e6, x.sigmoid()], -1))
    port = nnx_of(lambda _, x: jnp.concatenate([x * (1e6 * large), nnx.sigmoid(-x)], -1))
    report = compare(reference, port, x)
    assert report.verdict == "FAIL"
    assert not any("alone" in row.reason for row in report.rows)


# ----------------------------------------------------------------------------- causes by name


gelu = functools.partial(nnx.gelu, approximate=False)
tanh_gelu = functools.partial(nnx.gelu, approximate=True)


@pytest.mark.parametrize(
    ("first", "second", "own", "other", "text"),
    [
        ("gelu", "elu", gelu, nnx.relu, "ReLU instead of elu explains"),
        ("sigmoid", "gelu", nnx.sigmoid, tanh_gelu, "tanh GELU instead of gelu explains"),
        ("relu", "silu", nnx.relu, nnx.relu, "ReLU instead of silu explains"),
    ],
)
def test_of_two_activations_the_one_that_differs_is_named(first, second, own, other, text):
    before, behind = (getattr(torch.nn.functional, name) for name in (first, second))
    reference = torch_of(
        lambda self, x: self.two(behind(self.one(before(x)))), one=linear(1), two=linear(2)
    )
    port = port_of(reference, lambda self, x: self.two(other(self.one(own(x)))))
    (fault,) = compare(reference, port, 2 * X).faults
    assert fault.evidence.startswith(text)


GAP = np.arange(5)[:, None] - np.arange(7)[None]


@pytest.mark.parametrize(
    ("mistake", "cause"),
    [
        ("", ""),
        ("scale", "attention_scale"),
        ("no mask", "attention_mask"),
        ("one more", "attention_mask"),
        ("keys for values", "attention_heads"),
    ],
)
def test_the_cause_in_cross_attention_that_is_fused(mistake, cause):
    """With a scale of its own and a mask that is not square."""

    def forward(self, x, memory):
        pairs = ((self.q, x), (self.k, memory), (self.v, memory))
        q, k, v = (layer(y).unflatten(-1, (2, 4)).transpose(1, 2) for layer, y in pairs)
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.from_numpy(GAP > -3), scale=0.3
        )
        return self.o(y.transpose(1, 2).flatten(2))

    def call(self, x, memory):
        pairs = ((self.q, x), (self.k, memory), (self.v, memory))
        q, k, v = (layer(y).reshape(2, -1, 2, 4) for layer, y in pairs)
        if mistake == "keys for values":
            k, v = v, k
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (0.5 if mistake == "scale" else 0.3)
        seen = jnp.asarray({"no mask": -100, "one more": -4}.get(mistake, -3) < GAP)
        p = jax.nn.softmax(jnp.where(seen[None, None], scores, -1e9), -1)
        return self.o(jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape))

    reference = randomise(torch_of(forward, **{n: linear(i) for i, n in enumerate("qkvo")}))
    memory = RNG.standard_normal((2, 7, 8)).astype(np.float32)
    report = compare(reference, port_of(reference, call), X, memory)
    assert report.verdict == ("FAIL" if mistake else "PASS")
    assert places(report) == ([("", "between `v` and the input of `o`", cause)] if mistake else [])


# ------------------------------------------------------ layouts that the forced run tells


def heads_first(heads, layer):
    """A module over (item, head, position, 4) in the reference, (item, position, head, 4) in the
    port.
    """
    reference = randomise(
        torch_of(
            lambda self, x: (
                torch.sin(self.each(self.q(x).unflatten(-1, (heads, 4)).transpose(1, 2)))
                .transpose(1, 2)
                .flatten(2)
            ),
            q=linear(1, 8, 4 * heads),
            each=layer,
        )
    )
    port = port_of(
        reference,
        lambda self, x: jnp.sin(self.each(self.q(x).reshape(2, 5, heads, 4))).reshape(
            2, 5, 4 * heads
        ),
    )
    return reference, port


@pytest.mark.parametrize("heads", [2, 5])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, lambda size: torch.nn.Linear(size, size)])
def test_what_is_wrong_over_heads_that_lie_otherwise_is_one_fault(heads, kind):
    reference, port = heads_first(heads, kind(4))
    assert compare(reference, port, X).verdict == "PASS"
    port.each.bias[...] *= 2
    (fault,) = compare(reference, port, X).faults
    assert (fault.path, fault.cause) == ("each", "weights_value")


def test_heads_that_are_exchanged_with_positions_fail_where_they_are_as_many():
    reference, _ = heads_first(5, torch.nn.LayerNorm(4))

    def exchanged(self, x):
        h = jnp.sin(self.each(self.q(x).reshape(2, 5, 5, 4)))
        return h.transpose(0, 2, 1, 3).reshape(2, 5, 20)  # (item, head, position, 4) joined

    wrong = port_of(reference, exchanged)
    (fault,) = compare(reference, wrong, X).faults
    assert fault.path == ""


@pytest.mark.parametrize("size", [4, 1])
def test_a_wrong_bias_before_a_square_that_is_transposed_is_one_fault(size):
    conv = randomise(torch.nn.Conv1d(3, 4, size, stride=2 if size == 4 else 1, padding=size // 4))
    reference = torch_of(lambda self, x: torch.sin(self.conv(x)).transpose(1, 2), conv=conv)
    port = port_of(reference, lambda self, x: jnp.sin(self.conv(x)))
    x = RNG.standard_normal((2, 3, 4 if size == 1 else 8)).astype(np.float32)
    assert compare(reference, port, x).verdict == "PASS"
    port.conv.bias[...] += 1
    (fault,) = compare(reference, port, x).faults
    assert (fault.path, fault.cause) == ("conv", "weights_value")


class LinearAct(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


class NormAct(torch.nn.LayerNorm):
    """Does more than the layer that it is, as timm's BatchNormAct2d."""

    def forward(self, x):
        return torch.tanh(super().forward(x))


@pytest.mark.parametrize(
    ("layer", "right", "wrong"),
    [(LinearAct(8, 8), jax.nn.relu, jax.nn.gelu), (NormAct(8), jnp.tanh, jax.nn.sigmoid)],
)
def test_a_layer_that_does_more_is_what_wraps_the_plain_layer(layer, right, wrong):
    def port_with(function):
        wrapper = nnx_of(lambda self, x: function(self.inner(x)), inner=ported(reference.a))
        return nnx_of(lambda self, x: self.b(self.a(x)), a=wrapper, b=ported(reference.b))

    reference = randomise(torch_of(lambda self, x: self.b(self.a(x)), a=layer, b=linear()))
    assert compare(reference, port_with(right), X).verdict == "PASS"
    report = compare(reference, port_with(wrong), X)
    assert (report.verdict, report.first_fault.path) == ("FAIL", "a")


KEEP = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.float32)


@pytest.mark.parametrize(
    "made",
    [lambda keep: 1 - keep, lambda keep: keep[:, ::-1], lambda keep: jnp.roll(keep, 1, 1)],
    ids=["inverted", "reversed", "rolled"],
)
def test_a_mask_of_finfo_min_that_is_made_wrongly_is_its_makers(made):
    """In the float64 run `finfo(x.dtype).min` is another number."""

    def forward(self, x, keep):
        mask = (1 - keep[:, None]) * torch.finfo(x.dtype).min
        return self.a(x, mask)

    def port_with(change):
        def call(self, x, keep):
            mask = (1 - change(keep)[:, None]) * jnp.finfo(x.dtype).min
            return self.a(x, mask)

        return nnx_of(call, a=inner)

    attention = torch_of(
        lambda self, x, mask: self.o(torch.softmax(x @ x.mT / 8**0.5 + mask, -1) @ x), o=linear()
    )
    inner = port_of(
        attention,
        lambda self, x, mask: self.o(jax.nn.softmax(x @ x.swapaxes(1, 2) / 8**0.5 + mask, -1) @ x),
    )
    reference = torch_of(forward, a=attention)
    assert compare(reference, port_with(lambda keep: keep), X, KEEP).verdict == "PASS"
    report = compare(reference, port_with(made), X, KEEP)
    (fault,) = report.faults
    assert (fault.path, report.verdict) == ("", "FAIL")
    assert "in `mask` of `a`" in fault.magnitude
    assert not re.search("broke off|, $|^;", fault.evidence)


@pytest.mark.parametrize("heads", [2, 5])
def test_a_returned_cache_with_positions_first_breaks_no_diagnosis(heads):
    """(item, head, position, 4) in the reference, (item, position, head, 4) in the port."""

    def attention(self, x):
        k = self.k(x).unflatten(-1, (heads, 4)).transpose(1, 2)
        return self.o(torch.tanh(k).transpose(1, 2).flatten(2)), k

    def port_attention(self, x):
        k = self.k(x).reshape(2, 5, heads, 4)
        return self.o(jnp.tanh(k).reshape(2, 5, 4 * heads)), k

    layer = torch_of(attention, k=linear(1, 8, 4 * heads), o=linear(2, 4 * heads, 8))
    reference = torch_of(lambda self, x: self.a(self.up(x))[0], up=linear(), a=layer)
    inner = port_of(layer, port_attention)
    port = nnx_of(lambda self, x: self.a(self.up(x))[0], up=ported(reference.up), a=inner)
    assert compare(reference, port, X).verdict == "PASS"
    port.up.bias[...] += 1
    (fault,) = compare(reference, port, X).faults
    assert (fault.path, fault.cause) == ("up", "weights_value")


def test_what_is_made_of_an_array_in_another_order_is_read_so_too():
    """Where heads are as many as positions, and the values before are wrong."""
    split = torch_of(lambda self, x: torch.tanh(x).reshape(2, 5, 5, 4).transpose(1, 2))
    split_port = nnx_of(lambda self, x: jnp.tanh(x).reshape(2, 5, 5, 4))
    norm, fc, out = torch.nn.LayerNorm(4), linear(0, 8, 20), linear(1, 20, 20)
    reference = randomise(
        torch_of(
            lambda self, x: self.out(
                self.norm(self.split(self.fc(x))).transpose(1, 2).reshape(2, 5, 20)
            ),
            fc=fc, split=split, norm=norm, out=out,
        )
    )  # fmt: skip
    port = nnx_of(
        lambda self, x: self.out(self.norm(self.split(self.fc(x))).reshape(2, 5, 20)),
        fc=ported(fc), split=split_port, norm=ported(norm), out=ported(out),
    )  # fmt: skip
    assert compare(reference, port, X).verdict == "PASS"
    port.fc.bias[...] += 0.5
    (fault,) = compare(reference, port, X).faults
    assert (fault.path, fault.cause) == ("fc", "weights_value")


def test_a_factor_shows_beside_infinities_that_leave_the_call():
    """In the float64 run infinities stay what they are: only `finfo.min` is another number."""
    hidden = np.triu(np.ones((6, 6), bool), 1)

    def forward(self, x):
        w = self.q(x) @ self.k(x).mT * 8**-0.5
        return w.masked_fill(torch.from_numpy(hidden), float("-inf"))

    def call(self, x):
        w = self.q(x) @ self.k(x).swapaxes(1, 2) * 8**-1.0
        return jnp.where(hidden, -jnp.inf, w)

    reference = torch_of(forward, q=linear(), k=linear())
    x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    (fault,) = compare(reference, port_of(reference, call), x).faults
    assert (fault.cause, "explains 100 %" in fault.evidence) == ("scale_or_offset", True)
