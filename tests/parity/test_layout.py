import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import parity
from parity.capture.layout import Kind, channel_last, channel_second, check, reading
from parity.capture.torch import kind_of
from parity.core.exceptions import InputError
from tests.nets import ported, randomise, torch_of
from tests.ports import nnx_of


def read(path, leaf, names, rank, floating, layout):
    return reading(path, leaf, Kind(frozenset(names)), (2,) * rank, floating, layout)


def test_rank_and_kind_decide():
    assert read("a", "", ["Conv2d"], 4, True, {}).move
    assert read("a", "", ["MyBlock", "Module"], 5, True, {}).move
    assert not read("a", "", ["Linear"], 4, True, {}).move
    assert not read("a", "", ["MyBlock"], 3, True, {}).move  # (B, L, D) as likely as (B, C, L)
    assert read("a", "", ["Causal", "Conv1d"], 3, True, {}).move  # a subclass counts
    assert not read("a", "", ["Conv2d"], 4, False, {}).move  # integers are indices
    assert not read("a", "", ["GroupNorm"], 2, True, {}).move


def test_only_kind_and_declaration_are_sure():
    assert read("a", "", ["GroupNorm"], 5, True, {}).sure
    assert not read("a", "", ["MyBlock"], 5, True, {}).sure
    assert read("a", "", ["MyBlock"], 5, True, {"a": "channels_first"}).sure


@pytest.mark.parametrize("order", [1, -1])
def test_the_most_specific_declaration_counts(order):
    layout = {"*": "channels_first", "attn.*": "as_is", "attn.x#scores": "channels_first"}
    layout = dict([*layout.items()][::order])
    assert read("conv", "", ["M"], 3, True, layout).move
    assert not read("attn.x", "", ["M"], 4, True, layout).move
    assert read("attn.x", "scores", ["M"], 4, True, layout).move


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match="'nchw'; expected one of channels_first, as_is"):
        check({"a": "nchw"})


def test_the_moves_are_inverse():
    array = np.zeros((2, 3, 4, 5))
    moved = array.transpose(channel_last(4))
    assert moved.shape == (2, 4, 5, 3)
    assert moved.transpose(channel_second(4)).shape == array.shape


class GroupNorm(torch.nn.Module):
    """One of the user's, which has no more than the name."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt() * self.weight


class Conv(torch.nn.Conv1d):
    """Along positions that are the second axis, which PyTorch's own has last."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Causal(torch.nn.Conv1d):
    def forward(self, x):
        return super().forward(torch.nn.functional.pad(x, (self.kernel_size[0] - 1, 0)))


class Mixing(torch.nn.Linear):
    """Of channels of images."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("module", "shape", "move"),
    [
        (GroupNorm(4), (2, 5, 4), False),
        (GroupNorm(4), (2, 3, 5, 4), False),
        (Conv(4, 6, 1), (2, 5, 4), False),
        (Causal(4, 6, 3), (2, 4, 5), True),
        (Mixing(4, 6), (2, 4, 5, 3), True),
        (torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 6, 3)), (2, 4, 5), True),
    ],
)
def test_what_a_class_does_counts_and_not_its_name(module, shape, move):
    how = reading("a", "", kind_of(module), shape, True, {})
    assert (how.move, how.sure) == (move, True)


def test_wrong_arrays_are_read_as_where_they_come_from_where_sizes_are_equal():
    def call(self, x):
        return self.mix(self.conv(self.first(x))) + x

    first, mix = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    reference = randomise(torch_of(call, first=first, conv=Conv(4, 4, 3, padding=1), mix=mix))
    port = nnx_of(call, first=ported(first), conv=ported(reference.conv), mix=ported(mix))
    x = np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32)
    assert parity.compare(reference, port, (x,)).verdict == "PASS"
    port.conv.bias[...] *= 2
    report = parity.compare(reference, port, (x,))
    assert [(fault.path, fault.cause) for fault in report.faults] == [("conv", "weights_value")]
    port.conv.bias[...] /= 2
    port.first.bias[...] *= 2
    report = parity.compare(reference, port, (x,))
    assert [(fault.path, fault.cause) for fault in report.faults] == [("first", "weights_value")]


def test_a_class_that_does_something_else_is_not_sure_where_sizes_are_equal():
    assert not reading("a", "", kind_of(Mixing(4, 6)), (2, 4, 5, 4), True, {}).sure


@pytest.mark.parametrize("shape", [(2, 4, 4, 4), (2, 4, 6, 5)])
def test_a_channel_first_layer_norm_passes_and_its_mistake_is_placed(shape):
    class LayerNorm2d(torch.nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.movedim(1, -1)).movedim(-1, 1)

    def call(self, x):
        return self.norm(self.conv(x))

    reference = torch_of(call, conv=torch.nn.Conv2d(4, 4, 1), norm=LayerNorm2d(4))
    randomise(reference)
    port = nnx_of(call, conv=ported(reference.conv), norm=ported(reference.norm))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert parity.compare(reference, port, (x,)).verdict == "PASS"
    port.norm.bias[...] *= 1.5
    report = parity.compare(reference, port, (x,))
    assert report.first_fault.path == "norm"


@pytest.mark.parametrize("permuted", [False, True])
def test_what_follows_a_linear_has_its_channels_last_too(permuted):
    """The reference's own code moves the channels to the end: no doubt where the port has them."""
    parts = {"conv": torch.nn.Conv2d(4, 4, 1), "fc": torch.nn.Linear(4, 4)}

    def call(self, x):
        return torch.relu(self.fc(self.conv(x).permute(0, 2, 3, 1)))

    def port_call(self, x):
        y = jnp.maximum(self.fc(self.conv(x)), 0)
        return y.transpose(0, 3, 1, 2) if permuted else y

    reference = randomise(torch_of(call, **parts))
    port = nnx_of(port_call, **{name: ported(getattr(reference, name)) for name in parts})
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)
    assert (parity.compare(reference, port, (x,)).verdict == "PASS") == (not permuted)


def test_a_linear_in_the_middle_confirms_no_order_of_what_a_convolution_returns():
    """All sizes are the same: the port returns a permuted array, and only the layers tell."""
    parts = {"fc": torch.nn.Linear(4, 4), "conv": torch.nn.Conv2d(4, 4, 1)}

    def call(self, x):
        return torch.relu(self.conv(self.fc(x)))

    def port_call(self, x):
        y = self.conv(self.fc(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1))
        return jnp.maximum(y, 0).transpose(0, 3, 1, 2)

    reference = randomise(torch_of(call, **parts))
    port = nnx_of(port_call, **{name: ported(getattr(reference, name)) for name in parts})
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 4)).astype(np.float32)
    assert parity.compare(reference, port, (x,), check_compiled=False).verdict != "PASS"


@pytest.mark.parametrize("at", [(None,), (..., None), (...,)], ids=str)
def test_the_called_model_returns_as_many_axes(at):
    reference = randomise(torch_of(lambda self, x: self.fc(x), fc=torch.nn.Linear(4, 4)))
    port = nnx_of(lambda self, x: self.fc(x)[at], fc=ported(reference.fc))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    report = parity.compare(reference, port, (x,))
    assert [fault.cause for fault in report.faults] == ([] if at == (...,) else ["shape"])


@pytest.mark.parametrize("shape", [(2, 6, 6, 6), (3, 6, 6, 6, 6)])
@pytest.mark.parametrize("called", ["fc", "cumsum", "softmax"])
def test_where_sizes_are_equal_a_layer_or_the_values_tell_how_the_port_takes_its_input(
    called, shape
):
    fc = randomise(torch.nn.Linear(6, 6))
    forward, own = {
        "fc": (lambda self, x: self.fc(x), lambda self, x: self.fc(x)),
        "cumsum": (
            lambda self, x: self.fc(torch.cumsum(x, 1)),
            lambda self, x: self.fc(jnp.cumsum(x, 1)),
        ),
        "softmax": (
            lambda self, x: torch.softmax(x, 2) * x,
            lambda self, x: jax.nn.softmax(x, 2) * x,
        ),
    }[called]
    parts = {} if called == "softmax" else {"fc": fc}
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    port = nnx_of(own, **{name: ported(part) for name, part in parts.items()})
    reference = torch_of(forward, **parts)
    report = parity.compare(reference, port, (x,))
    assert report.verdict == ("PASS" if called == "fc" else "WARN")
    assert [note for note in report.notes if "<root>#x" in note] == list(report.notes)
    assert parity.compare(reference, port, (x,), layout={"<root>#x": "as_is"}).verdict == "PASS"


def test_a_wrong_axis_fails_where_sizes_are_equal_too():
    fc = randomise(torch.nn.Linear(6, 6))
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 6)).astype(np.float32)
    reference = torch_of(lambda self, x: torch.softmax(self.fc(x), 1), fc=fc)
    for axis, verdict in ((1, "PASS"), (2, "FAIL"), (3, "FAIL")):
        port = nnx_of(lambda self, x, n=axis: jax.nn.softmax(self.fc(x), n), fc=ported(fc))
        assert parity.compare(reference, port, (x,)).verdict == verdict, axis
