"""Right ports that are built otherwise than their reference, and wrong ones of the same build."""

import ast
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.options.options import Options
from parity.report.sections import coverage_lines
from parity.run import proposal
from tests.nets import ported, randomise, torch_of
from tests.ports import nnx_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 8)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 3, 5, 6)).astype(np.float32)


def linear(seed=0, size=8):
    torch.manual_seed(seed)
    return torch.nn.Linear(size, size)


def compare(reference, port, *args, **options):
    return parity.compare(reference.eval(), port, args, check_compiled=False, **options)


def verdict(reference, port, *args, **options):
    report = compare(reference, port, *args, **options)
    return report.verdict, report.notes, [(fault.path, fault.cause) for fault in report.faults]


PASS = ("PASS", (), [])


# --------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "other",
    [
        lambda x: jnp.ones(x.shape[:2], jnp.int32),  # segments, not positions
        lambda x: jnp.zeros((1, x.shape[1]), jnp.int32),  # of another shape
        lambda x: jnp.zeros(x.shape[:2], bool),
    ],
    ids=["segments", "another shape", "a mask"],
)
def test_whole_numbers_of_another_name_keep_the_port_s_values(other):
    inner = torch_of(
        lambda self, x, position_ids: self.fc(x) * position_ids[..., None], fc=linear()
    )

    def outer(self, x):
        return self.inner(x, position_ids=torch.arange(5).expand(2, 5))

    reference = torch_of(outer, inner=inner)
    place = nnx_of(
        lambda self, x, own: self.fc(x) * jnp.arange(5)[None, :, None], fc=ported(inner.fc)
    )
    port = nnx_of(lambda self, x: self.inner(x, other(x)), inner=place)
    assert verdict(reference, port, X) == PASS


def mix(self, x, mask):
    scores = torch.softmax(x @ x.transpose(1, 2) + mask, -1)
    return self.fc(scores @ x)


@pytest.mark.parametrize("shape", [(1, 5, 5), (5, 5), (2, 5, 5)])
def test_a_boolean_mask_for_an_additive_one(shape):
    inner = torch_of(mix, fc=linear())
    low = torch.full((5, 5), -torch.inf).triu(1)
    reference = torch_of(lambda self, x: self.inner(x, low.expand(2, 5, 5)), inner=inner)

    def mixed(self, x, seen):
        scores = jnp.where(seen, x @ x.swapaxes(1, 2), -jnp.inf)
        return self.fc(jax.nn.softmax(scores, -1) @ x)

    seen = jnp.broadcast_to(jnp.tril(jnp.ones((5, 5), bool)), shape)
    place = nnx_of(mixed, fc=ported(inner.fc))
    assert verdict(reference, nnx_of(lambda self, x: self.inner(x, seen), inner=place), X) == PASS
    wrong = nnx_of(
        lambda self, x: self.inner(x, jnp.tril(seen, -1) | (seen[..., :1] & False)), inner=place
    )
    assert compare(reference, wrong, X).verdict != "PASS"


def test_an_argument_that_was_given_by_keyword_stays_so():
    import functools

    def forward(self, x, scale=1.0):
        return self.fc(x) * scale

    @functools.wraps(forward)
    def keywords(self, *args, scale=2.0, **kwargs):
        return forward(self, *args, scale=scale, **kwargs)

    inner = torch_of(keywords, fc=linear())
    reference = torch_of(lambda self, x: self.inner(x, scale=3.0), inner=inner)
    place = nnx_of(lambda self, x, scale: self.fc(x) * scale, fc=ported(inner.fc))
    assert verdict(reference, nnx_of(lambda self, x: self.inner(x, 3.0), inner=place), X) == PASS


# ------------------------------------------------------------------------- calls and modules


@pytest.mark.parametrize(
    "idle",
    [torch.nn.Identity(), torch.nn.Dropout(0.5), torch.nn.SiLU()],
    ids=lambda one: type(one).__name__,
)
def test_what_holds_nothing_and_does_nothing_needs_no_counterpart(idle):
    used = not isinstance(idle, torch.nn.SiLU)
    forward = (lambda self, x: self.fc(self.act(x))) if used else (lambda self, x: self.fc(x))
    reference = torch_of(forward, fc=linear(), act=idle)
    assert (
        verdict(reference, nnx_of(lambda self, x: self.fc(x), fc=ported(reference.fc)), X) == PASS
    )


def test_a_call_that_does_nothing_is_not_taken_for_another():
    reference = torch_of(
        lambda self, x: self.two(self.drop(torch.tanh(self.drop(self.one(x))))),
        one=linear(1),
        two=linear(2),
        drop=torch.nn.Dropout(),
    )
    parts = {name: ported(getattr(reference, name)) for name in ("one", "two")}
    drop = nnx.Dropout(0.5, deterministic=True)
    right = nnx_of(lambda self, x: self.two(self.drop(jnp.tanh(self.one(x)))), drop=drop, **parts)
    assert verdict(reference, right, X) == PASS
    wrong = nnx_of(lambda self, x: self.two(self.drop(jnp.sin(self.one(x)))), drop=drop, **parts)
    (fault,) = compare(reference, wrong, X).faults
    assert fault.segment == "between `one` and the input of `two`"


@pytest.mark.parametrize(
    ("inside", "behind"),
    [
        (torch.nn.functional.silu, nnx.silu),
        (lambda x: x.flip(-1), lambda x: x[..., ::-1]),
        (lambda x: 3 * x, lambda x: 3 * x),
    ],
    ids=["activation", "order", "factor"],
)
def test_code_behind_a_module_that_the_reference_has_inside(inside, behind):
    class Norm(torch.nn.LayerNorm):
        def forward(self, x):
            return inside(super().forward(x))

    reference = torch_of(lambda self, x: self.fc(self.norm(x)), norm=Norm(8), fc=linear())
    randomise(reference)
    plain = torch.nn.LayerNorm(8)
    plain.load_state_dict(reference.norm.state_dict())
    parts = {"norm": ported(plain), "fc": ported(reference.fc)}
    port = nnx_of(lambda self, x: self.fc(behind(self.norm(x))), **parts)
    assert verdict(reference, port, X) == PASS
    assert (
        compare(reference, nnx_of(lambda self, x: self.fc(self.norm(x)), **parts), X).verdict
        == "FAIL"
    )


class Past(torch.nn.Module):
    """Adds what the call before left behind."""

    def __init__(self):
        super().__init__()
        self.fc = linear()

    def forward(self, x, past):
        h = torch.nn.functional.silu(self.fc(x)) + past[0]
        past[0] = h[:, -1:] * 2
        return torch.tanh(h)


@pytest.mark.parametrize(
    ("inside", "left", "paths"),
    [
        (nnx.silu, lambda past: past, []),
        (nnx.relu, lambda past: past, ["one"]),
        (nnx.silu, lambda past: past[:, ::-1] + 1, [""]),
        (nnx.relu, lambda past: past + 1, ["one", ""]),
    ],
    ids=["right", "the call", "the caller", "both"],
)
def test_a_wrong_call_that_hands_on_its_past_is_one_fault(inside, left, paths):
    def outer(self, x):
        past = [torch.zeros(2, 1, 8)]
        return torch.cat([self.one(part, past) for part in x.split([2, 3], 1)], 1)

    reference = torch_of(outer, one=Past())

    def step(self, x, past):
        h = inside(self.fc(x)) + past
        return jnp.tanh(h), h[:, -1:] * 2

    def steps(self, x):
        first, past = self.one(x[:, :2], jnp.zeros((2, 1, 8)))
        second, _ = self.one(x[:, 2:], left(past))
        return jnp.concatenate([first, second], 1)

    port = nnx_of(steps, one=nnx_of(step, fc=ported(reference.one.fc)))
    found = [(fault.path, fault.evidence) for fault in compare(reference, port, X).faults]
    assert [path for path, _ in found] == paths, found


def gated(self, x, gate):
    return self.norm(x * torch.nn.functional.silu(gate))


MISTAKES = {
    "": (jnp.tanh, 1e-5, []),
    "before it": (jnp.sin, 1e-5, [""]),
    "in it": (jnp.tanh, 1e-1, ["norm.norm"]),
    "both": (jnp.sin, 1e-1, ["", "norm.norm"]),
}


@pytest.mark.parametrize("wrong", MISTAKES)
def test_a_mistake_beside_code_that_moved_is_one_fault(wrong):
    inner = torch_of(gated, norm=torch.nn.LayerNorm(8))
    reference = torch_of(
        lambda self, x: self.fc(self.norm(torch.tanh(x), self.gate(x))),
        norm=inner, fc=linear(), gate=linear(1),
    )  # fmt: skip
    randomise(reference)
    before, epsilon, paths = MISTAKES[wrong]
    parts = {"fc": ported(reference.fc), "gate": ported(reference.gate)}
    place = nnx_of(lambda self, x: self.norm(x), norm=ported(inner.norm, epsilon=epsilon))
    port = nnx_of(
        lambda self, x: self.fc(self.norm(before(x) * jax.nn.silu(self.gate(x)))),
        norm=place, **parts,
    )  # fmt: skip
    found = [(fault.path, fault.evidence) for fault in compare(reference, port, X).faults]
    assert [path for path, _ in found] == paths, found


@pytest.mark.parametrize("before", [jnp.tanh, jnp.sin], ids=["right", "wrong"])
def test_code_in_front_of_a_module_that_the_reference_has_inside(before):
    inner = torch_of(lambda self, x: self.fc(torch.tanh(x)), fc=linear(1))
    reference = torch_of(lambda self, x: self.inner(self.fc(x)), inner=inner, fc=linear(2))
    place = nnx_of(lambda self, x: self.fc(x), fc=ported(inner.fc))
    port = nnx_of(
        lambda self, x: self.inner(before(self.fc(x))), inner=place, fc=ported(reference.fc)
    )
    report = compare(reference, port, X)
    assert report.verdict == ("PASS" if before is jnp.tanh else "FAIL")


@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (1, 8)])
def test_heads_split_in_the_projection(shape):
    reference = torch_of(lambda self, x: self.out(self.q(x)), q=linear(1), out=linear(2))
    q = nnx.LinearGeneral(8, shape, rngs=nnx.Rngs(0))
    q.kernel[...] = ported(reference.q).kernel[...].reshape(8, *shape)
    q.bias[...] = ported(reference.q).bias[...].reshape(shape)
    port = nnx_of(
        lambda self, x: self.out(self.q(x).reshape(x.shape)), q=q, out=ported(reference.out)
    )
    report = compare(reference, port, X)
    assert (report.verdict, report.coverage.matched) == ("PASS", ("", "q", "out"))
    q.bias[0, 0] += 1
    assert [(f.path, f.cause) for f in compare(reference, port, X).faults] == [
        ("q", "weights_value")
    ]


# ---------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (3, 1, 1), (2, 1, 1, 1, 1)])
def test_axes_of_one_entry_have_one_reading(shape):
    axes = tuple(range(1, len(shape)))
    x = RNG.standard_normal((shape[0], *[4] * len(axes))).astype(np.float32)
    reference = torch_of(lambda self, x: x.mean(axes, keepdim=True))
    port = nnx_of(lambda self, x: x.mean(axes, keepdims=True))
    assert verdict(reference, port, x) == PASS


@pytest.mark.parametrize("size", [1, 3])
def test_a_port_that_takes_images_as_the_reference_does(size):
    torch.manual_seed(0)
    reference = torch_of(lambda self, x: self.conv(x), conv=torch.nn.Conv2d(3, 4, size))
    conv = ported(reference.conv)
    port = nnx_of(
        lambda self, x: self.conv(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), conv=conv
    )
    assert verdict(reference, port, IMAGE) == PASS
    turned = nnx_of(
        lambda self, x: self.conv(x.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1), conv=conv
    )
    kernel = size == 1  # rows for columns are the same to a convolution of one entry
    assert (compare(reference, turned, IMAGE).verdict == "PASS") == kernel


def test_a_sequence_with_channels_at_axis_1_is_returned_channel_last():
    torch.manual_seed(0)
    reference = torch_of(lambda self, x: self.conv(x), conv=torch.nn.Conv1d(3, 4, 1))
    port = nnx_of(lambda self, x: self.conv(x), conv=ported(reference.conv))
    assert verdict(reference, port, IMAGE[:, :, 0]) == PASS


@pytest.mark.parametrize("side", ["reference", "port"])
def test_what_one_side_alone_returns_inside_is_listed(side):
    both, one = (lambda self, x: (self.fc(x), x)), (lambda self, x: (self.fc(x),))
    own, its = (both, one) if side == "reference" else (one, both)
    inner = torch_of(own, fc=linear())
    reference = torch_of(lambda self, x: self.inner(x)[0], inner=inner)
    place = nnx_of(its, fc=ported(inner.fc))
    report = compare(reference, nnx_of(lambda self, x: self.inner(x)[0], inner=place), X)
    lines = coverage_lines(report.coverage)
    assert report.verdict == "PASS"
    assert f"not compared, only the {side} returns it inside: `inner#1`" in lines


def test_a_port_that_returns_a_permuted_array_is_wrong():
    x = RNG.standard_normal((2, 4, 4, 4)).astype(np.float32)
    torch.manual_seed(0)
    reference = torch_of(lambda self, x: self.conv(x), conv=torch.nn.Conv2d(4, 4, 1))
    for axes in ((0, 2, 1, 3), (0, 3, 2, 1), (0, 1, 3, 2)):
        port = nnx_of(
            lambda self, x, axes=axes: self.conv(x).transpose(axes), conv=ported(reference.conv)
        )
        assert compare(reference, port, x).verdict == "FAIL"


# ------------------------------------------------------------------------ references as they are


def test_lists_that_both_sides_change_in_place():
    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = linear()

        def forward(self, x, kept, at):
            y = self.fc(x) + (0 if kept[at["i"]] is None else kept[at["i"]])
            kept[at["i"]] = x
            at["i"] += 1
            return y

    def turns(self, x):
        kept, found = [None], []
        for i in range(3):
            found.append(self.part(x + i, kept, {"i": 0}))
        return sum(found)

    def step(self, x, kept, at):
        y = self.fc(x) + (0 if kept[at["i"]] is None else kept[at["i"]])
        kept[at["i"]] = x
        at["i"] += 1
        return y

    def stale(self, x, kept, at):
        return self.fc(x) + (0 if kept[0] is None else kept[0])

    reference = torch_of(turns, part=Cached())
    fc = ported(reference.part.fc)
    assert verdict(reference, nnx_of(turns, part=nnx_of(step, fc=fc)), X) == PASS
    assert compare(reference, nnx_of(turns, part=nnx_of(stale, fc=fc)), X).verdict == "FAIL"


@pytest.mark.parametrize("low", ["finfo", "zeros", "arange"])
def test_code_that_makes_arrays_of_the_default_type(low):
    made = {
        "finfo": lambda x: torch.full((5, 1), torch.finfo(x.dtype).min).clamp(-1),
        "zeros": lambda x: torch.zeros(5, 1).fill_(torch.finfo(x.dtype).max).clamp(max=-1),
        "arange": lambda x: -torch.ones(5, 1) * torch.tensor(1.0),
    }[low]
    reference = torch_of(lambda self, x: self.fc(x) + made(x), fc=linear())
    port = nnx_of(lambda self, x: self.fc(x) - 1, fc=ported(reference.fc))
    assert verdict(reference, port, X) == PASS


@pytest.mark.parametrize("leaf", [None, "bias"])
def test_a_leaf_without_values_is_named(leaf):
    reference = torch_of(lambda self, x: self.fc(x), fc=linear())
    fc, empty = ported(reference.fc), nnx.eval_shape(lambda: ported(reference.fc))
    if leaf is not None:
        fc.bias = empty.bias
    port = nnx_of(lambda self, x: self.fc(x), fc=empty if leaf is None else fc)
    with pytest.raises(parity.InputError, match="no weight was loaded into it"):
        compare(reference, port, X)


def lacking():
    """A reference with a module that the port does not have, and the port."""
    fc, spare = linear(1), linear(2)
    reference = torch_of(
        lambda self, x: self.fc(x) + 0 * self.spare[0](x),
        fc=fc,
        spare=torch.nn.ModuleList([spare]),
    )
    return reference, nnx_of(lambda self, x: self.fc(x), fc=ported(fc))


def test_what_to_paste_where_something_has_no_counterpart():
    reference, port = lacking()
    report = compare(reference, port, X)
    assert report.verdict == "FAIL"
    assert report.notes[0].startswith("mapping incomplete: without a counterpart are ")
    assert str(report).endswith(": mapping incomplete")
    ignore = ast.literal_eval(report.coverage.proposal.removeprefix("ignore="))
    assert compare(reference, port, X, ignore=ignore).coverage.complete


def test_what_does_not_help_is_not_proposed(monkeypatch):
    kept = proposal.aligned
    without = replace(Options(), declared={})  # as if nothing came of it
    monkeypatch.setattr(
        proposal, "aligned", lambda own, *rest: kept(replace(own, options=without), *rest)
    )
    report = compare(*lacking(), X)
    assert report.coverage.unmatched
    assert report.coverage.proposal == ""
    assert "ignore" not in str(report)
