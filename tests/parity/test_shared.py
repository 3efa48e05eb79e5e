"""One module under several names, which the port gives in another order than the reference."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.nets import ported, randomise, torch_of
from tests.ports import nnx_of
from tests.reports import compare

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
IDS = np.array([[1, 2, 3], [4, 5, 6]])


def of(make, call, names, **parts):
    """A module with the parts in the order of these names, some of which are one module."""
    return make(call, **{name: parts[name] for name in names.split()})


def layer():
    torch.manual_seed(0)
    return randomise(torch.nn.Linear(4, 4))


def moved(port, by=0.3):
    port.bias[...] = port.bias[...] + by
    return port


def chain(*names):
    """Code that calls the modules of these names, one after the other."""

    def call(self, x):
        for name in names:
            x = getattr(self, name)(x)
            x = x.tanh() if isinstance(x, torch.Tensor) else jnp.tanh(x)
        return x

    return call


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    ("names", "call", "port_names", "port_call"),
    [
        ("a b c", chain(*"abc"), "c b a", chain(*"abc")),
        ("a b c", chain(*"cab"), "b c a", chain(*"cab")),
        ("a b", chain(*"ab"), "b a", chain(*"bb")),
        ("a b", chain(*"bb"), "b a", chain(*"ab")),
    ],
    ids=["three names", "called in turns", "the port by one name", "the reference by one name"],
)
def test_a_layer_of_several_names(names, call, port_names, port_call, wrong):
    theirs = layer()
    ours = moved(ported(theirs)) if wrong else ported(theirs)
    reference = of(torch_of, call, names, **dict.fromkeys(names.split(), theirs))
    port = of(nnx_of, port_call, port_names, **dict.fromkeys(port_names.split(), ours))
    report = compare(reference, port, (X,))
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    assert [fault.path for fault in report.faults] == ["a"] * wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_layer_that_a_list_has_twice_and_the_port_under_two_names(wrong):
    theirs = layer()
    ours = moved(ported(theirs)) if wrong else ported(theirs)

    def call(self, x):
        for one in self.layers:
            x = torch.tanh(one(x))
        return x

    reference = torch_of(call, layers=torch.nn.ModuleList([theirs, theirs]))
    report = compare(reference, nnx_of(chain(*"yx"), x=ours, y=ours), (X,))
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    assert [fault.path for fault in report.faults] == ["layers.0"] * wrong


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_block_of_layers_of_two_names(wrong, gradients):
    theirs = layer()
    ours = moved(ported(theirs)) if wrong else ported(theirs)
    call = lambda self, x: self.second(self.first(x))  # noqa: E731
    block = torch_of(lambda self, x: torch.relu(self.fc(x)), fc=theirs)
    port_block = nnx_of(lambda self, x: jnp.maximum(self.fc(x), 0), fc=ours)
    reference = of(torch_of, call, "first second", first=block, second=block)
    port = of(nnx_of, call, "second first", first=port_block, second=port_block)
    report = compare(reference, port, (X,), gradients=gradients)
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
    assert [fault.path for fault in report.faults] == ["first.fc"] * wrong


def encoder(make, embed):
    return make(lambda self, ids: self.embed(ids) * 2, embed=embed)


def decoder(make, embed, by=1):
    return make(lambda self, h, ids: h + by * self.embed(ids), embed=embed)


@pytest.mark.parametrize("order", ["encoder shared decoder", "decoder encoder shared"])
def test_an_embedding_that_modules_share_at_other_depths(order):
    """As in T5: the model holds it, and so do its encoder and its decoder."""
    torch.manual_seed(0)
    theirs = torch.nn.Embedding(7, 4)
    call = lambda self, ids: self.decoder(self.encoder(ids), ids)  # noqa: E731
    parts = {"encoder": encoder(torch_of, theirs), "decoder": decoder(torch_of, theirs)}
    reference = of(torch_of, call, "shared encoder decoder", shared=theirs, **parts)

    def verdict(by):
        ours = ported(theirs)
        parts = {"encoder": encoder(nnx_of, ours), "decoder": decoder(nnx_of, ours, by)}
        return compare(reference, of(nnx_of, call, order, shared=ours, **parts), (IDS,)).verdict

    assert (verdict(1), verdict(2)) == ("PASS", "FAIL")


@pytest.mark.parametrize("order", ["u v", "v u"])
@pytest.mark.parametrize("wrong", [False, True])
def test_two_blocks_that_share_an_activation_and_a_layer(order, wrong):
    theirs = layer()
    ours, act = ported(theirs), nnx_of(lambda self, x: jnp.tanh(x))
    call = lambda self, x: self.v(self.u(x))  # noqa: E731
    of_u, of_v = (lambda self, x, by=by: self.act(self.fc(x)) * by for by in (2, 3))
    shared = {"fc": theirs, "act": torch.nn.Tanh()}
    u, v = torch_of(of_u, **shared), torch_of(of_v, **shared)
    reference = torch_of(call, u=u, v=v).eval()
    port_of_v = (lambda self, x: of_v(self, x) + 1) if wrong else of_v
    u, v = nnx_of(of_u, act=act, fc=ours), nnx_of(port_of_v, act=act, fc=ours)
    report = compare(reference, of(nnx_of, call, order, u=u, v=v), (X,))
    assert report.verdict == ("FAIL" if wrong else "PASS"), report.notes
