"""Ports in the styles of strangers: right ones pass, wrong ones fail at the right place."""

import functools
from collections import OrderedDict
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from jax._src import ad_checkpoint

import parity
from parity.capture.checkpoints import no_checkpoints
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
