"""Mistakes that a careless comparison lets pass, each through the public `compare`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.align.axis_order_notes import NO_LAYER
from parity.core.exceptions import InputError
from tests.nets import port_of, ported, torch_of
from tests.ports import nnx_of

X = np.random.default_rng(8).standard_normal((2, 3, 8, 5)).astype(np.float32)
ROWS = np.random.default_rng(9).standard_normal((4, 6)).astype(np.float32)


class Linear(nnx.Module):
    def __init__(self, reference, dtype=None):
        self.linear = ported(reference, dtype=dtype)

    def __call__(self, x):
        return self.linear(x)


def around():
    return torch_of(lambda self, x: self.linear(x), linear=torch.nn.Linear(6, 6))


def compare(reference, port, *args, **options):
    return parity.compare(reference, port, args, check_compiled=False, **options)


def test_a_port_in_a_coarser_type_than_the_reference():
    reference = around()
    port = Linear(reference.linear, jnp.bfloat16)
    report = compare(reference, port, ROWS)
    assert ("linear", "dtype") in [(fault.path, fault.cause) for fault in report.faults]


def test_the_one_in_a_coarser_type_is_at_fault_and_not_its_parent():
    class Port(Linear):
        def __call__(self, x):
            return self.linear(x).astype(jnp.float32)

    reference = around()
    report = compare(reference, Port(reference.linear, jnp.bfloat16), ROWS)
    assert [(fault.path, fault.cause) for fault in report.faults] == [("linear", "dtype")]


def test_other_integers_passed_to_a_child_are_the_mistake_of_the_one_around_it():
    reference = torch_of(
        lambda self, x: x + self.embed(torch.arange(4)), embed=torch.nn.Embedding(6, 4)
    )
    rows = ROWS[:, :4]
    report = compare(
        reference,
        nnx_of(lambda self, x: x + self.embed(jnp.arange(2, 6)), embed=ported(reference.embed)),
        rows,
    )
    assert [fault.path for fault in report.faults] == [""]


def test_a_reference_that_refuses_float64_leaves_child_inputs_unknown():
    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return self.linear(torch.tanh(x))

    class Port(Linear):
        def __call__(self, x):
            return self.linear(3 * jnp.tanh(x))

    reference = torch_of(forward, linear=torch.nn.Linear(6, 6))
    report = compare(reference, Port(reference.linear), ROWS)
    assert not report
    assert any("float32 only" in row.reason for row in report.rows)


def test_nnx_args_are_compared_where_axis_1_is_no_channel():
    reference = torch_of(lambda _, x: x * 2)

    port = nnx_of(lambda _, x: x * 2)

    assert compare(reference, port, X, nnx_args=(X,))
    with pytest.raises(InputError, match="other values"):
        compare(reference, port, X, nnx_args=(X + 100,))


def test_an_empty_output_is_equal_to_an_empty_one():
    def code(_, x):
        return x * 2, x[:0]

    assert compare(torch_of(code), nnx_of(code), ROWS).verdict == "PASS"


def test_what_the_reference_writes_to_after_a_call_does_not_change_what_was_measured():
    def forward(self, x):
        h = torch.exp(x) * 0.3 + self.a(x)
        y = self.b(h)
        h += y
        return h

    def call(self, x):
        h = jnp.exp(x) * 0.3 + self.a(x)
        return h + self.b(h)

    reference = torch_of(forward, a=torch.nn.Linear(512, 512), b=torch.nn.Linear(512, 512))
    x = np.random.default_rng(0).standard_normal((2, 256, 512)).astype(np.float32)
    report = compare(reference, port_of(reference, call), x, layout={"*": "as_is"})
    assert {row.verdict for row in report.rows} == {"PASS"}


def test_weights_kept_in_another_form_are_no_cause_if_they_explain_nothing():
    reference = torch_of(
        lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight,
        weight=torch.nn.Parameter(torch.linspace(0.5, 1.5, 6)),
    )

    def call(self, x):
        scale = 1 + self.weight[...].reshape(1, -1)
        return x * (jnp.mean(x * x, -1, keepdims=True) + 1e-2) ** -0.5 * scale

    weight = nnx.Param(jnp.asarray(reference.weight.detach().numpy()) - 1)  # an offset from one
    report = compare(reference, nnx_of(call, weight=weight), ROWS)
    assert [fault.cause for fault in report.faults] == ["epsilon"]


def test_no_glob_renames_the_root():
    reference = around()
    report = compare(
        reference,
        nnx_of(lambda self, x: self.net(x), net=Linear(reference.linear)),
        ROWS,
        rename={"*": "net.*"},
    )
    assert report.verdict in ("PASS", "WARN")
    assert "linear" in report.coverage.matched


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("short", [False, True], ids=["one shape", "two shapes"])
def test_outputs_of_the_called_model_that_are_exchanged(short, exchanged):
    def forward(self, x):
        y = self.two(x)
        return self.one(x), y.mean(0) if short else y

    reference = torch_of(forward, one=torch.nn.Linear(6, 6), two=torch.nn.Linear(6, 6))

    def call(self, x):
        return forward(self, x)[:: -1 if exchanged else 1]

    assert compare(reference, port_of(reference, call), ROWS).verdict == (
        "FAIL" if exchanged else "PASS"
    )


@pytest.mark.parametrize("factor", [2, 3], ids=["right", "wrong"])
@pytest.mark.parametrize("inside", [jnp.tanh, jnp.sin], ids=["right", "wrong"])
def test_two_mistakes_where_nothing_shows_are_no_code_that_moved(inside, factor):
    """The one in the call around is a mistake in what the inner one gets."""
    inner = torch_of(
        lambda self, x: torch.tanh(x) * self.weight,
        weight=torch.nn.Parameter(torch.linspace(0.5, 1.5, 6)),
    )
    reference = torch_of(
        lambda self, x: torch.where(x > 100, self.inner(2 * x), self.fc(x)),
        inner=inner,
        fc=torch.nn.Linear(6, 6),
    )
    weight = nnx.Param(jnp.asarray(inner.weight.detach().numpy()))
    port = nnx_of(
        lambda self, x: jnp.where(x > 100, self.inner(factor * x), self.fc(x)),
        inner=nnx_of(lambda self, x: inside(x) * self.weight[None], weight=weight),
        fc=ported(reference.fc),
    )
    report = compare(reference, port, ROWS)
    assert [fault.path for fault in report.faults] == (["inner"] if inside is jnp.sin else [])
    assert (report.verdict == "PASS") == (inside is jnp.tanh and factor == 2)


@pytest.mark.parametrize("length", [5, 6], ids=["other sizes", "one size"])
def test_a_sequence_that_is_returned_with_its_axes_exchanged(length):
    x = np.random.default_rng(10).standard_normal((2, length, 6)).astype(np.float32)
    reference = around()
    port = nnx_of(lambda self, x: self.linear(x).swapaxes(1, 2), linear=ported(reference.linear))
    report = compare(reference, port, x)
    assert report.verdict != "PASS"
    assert [note.rpartition(", though ")[2] for note in report.notes] == [NO_LAYER]


def test_an_image_that_is_taken_channel_last_and_returned_channel_first():
    reference = torch_of(lambda self, x: self.conv(x), conv=torch.nn.Conv2d(3, 4, 1))
    port = port_of(reference, lambda self, x: self.conv(x).transpose(0, 3, 1, 2))
    (note,) = compare(reference, port, X).notes
    assert "in the order (0, 1, 2, 3) of PyTorch's" in note


def written_out(xp, epsilon, after):
    """A norm written by hand, and what the model makes of it."""

    def forward(self, x):
        kept = {"keepdim" if xp is torch else "keepdims": True}
        centred = x - xp.mean(x, -1, **kept)
        return after(xp, centred / xp.sqrt(xp.mean(centred**2, -1, **kept) + epsilon))

    return forward


def _largest(xp, y):
    top = y.amax(-1, keepdim=True) if xp is torch else y.max(-1, keepdims=True)
    return xp.where(y >= top, y, 0 * y)


def _above_the_eighth(xp, y):
    top = xp.topk(y, 8, -1)[0] if xp is torch else jax.lax.top_k(y, 8)[0]
    return xp.where(y < top[..., -1:], 0 * y, y)


@pytest.mark.parametrize("after", [_largest, _above_the_eighth])
def test_a_small_mistake_before_a_comparison(after):
    """Roundings of either side of it could change whole entries: that is no excuse."""
    x = np.random.default_rng(0).standard_normal((2, 32, 64)).astype(np.float32)
    reference = torch_of(written_out(torch, 1e-5, after))
    for epsilon, verdict in ((1e-5, "PASS"), (1e-6, "FAIL")):
        port = nnx_of(written_out(jnp, epsilon, after))
        report = parity.compare(reference, port, (x,), layout={"*": "as_is"})
        assert report.verdict == verdict


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda x: x.softmax(1), lambda x: jax.nn.softmax(x, 1)),
        (lambda x: x * x.pow(2).mean(1, True).rsqrt(), lambda x: _scaled(x, 1)),
        (lambda x: x * x.pow(2).mean((2, 3), True).rsqrt(), lambda x: _scaled(x, (2, 3))),
        (lambda x: x.cumsum(2), lambda x: jnp.cumsum(x, 2)),
    ],
    ids=["softmax", "channels", "positions", "sums"],
)
def test_an_axis_that_stayed_pytorch_s(theirs, ours):
    """A port of images takes them channel-last, though on PyTorch's arrays it would be right."""
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 5)).astype(np.float32)
    port = nnx_of(lambda self, x: ours(x))
    assert parity.compare(torch_of(lambda self, x: theirs(x)), port, (x,)).verdict == "FAIL"


def _scaled(x, axes):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axes, keepdims=True))
