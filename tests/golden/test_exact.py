"""Numbers that are exact: PyTorch's ids have 64 bits, JAX's 32."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.calls import Leaf, LeafMatch
from parity.core.pair import Pair
from parity.core.store import Store
from parity.traces import sample
from parity.traces.check import check_trace
from parity.traces.record import record_pair
from parity.traces.view import Sampled, Side, View


class TorchTable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)
        self.out = torch.nn.Linear(4, 3)

    def forward(self, ids):
        return self.out(self.table(ids))


class Table(nnx.Module):
    def __init__(self, tensors):
        rngs = nnx.Rngs(0)
        self.table = nnx.Embed(7, 4, rngs=rngs)
        self.out = nnx.Linear(4, 3, rngs=rngs)
        self.table.embedding[...] = jnp.asarray(tensors["table.weight"])
        self.out.kernel[...] = jnp.asarray(tensors["out.weight"].T)
        self.out.bias[...] = jnp.asarray(tensors["out.bias"])

    def __call__(self, ids):
        return self.out(self.table(ids))


class TorchSigns(torch.nn.Module):
    def forward(self, x):
        return (x > 0).long()


class Signs(nnx.Module):
    lost = None

    def __call__(self, x):
        signs = (x > 0).astype(jnp.int32)
        return signs if self.lost is None else signs.at[self.lost].add(1)


def make_torch(weights, config, seed):
    torch.manual_seed(seed)
    return TorchTable()


IDS = np.random.default_rng(0).integers(0, 7, (30, 5))

PAIR = Pair(
    name="table",
    make_torch=make_torch,
    make_nnx=lambda weights, config, reference: Table(
        {name: value.numpy() for name, value in reference.state_dict().items()}
    ),
    cases=lambda reference, clip, seed: (parity.Case("__call__/ids", (IDS,)),),
    rungs=(),
    offline=parity.Offline(
        settings=lambda reference: {}, make_nnx=lambda settings, tensors: Table(tensors)
    ),
)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("statistics", [False, True])
def test_ids_are_the_same_in_another_width(tmp_path, statistics):
    """150 of them: more than are kept of each array."""
    record_pair(PAIR, tmp_path, frames=1, size=(8, 8), seed=0, statistics=statistics)
    report = check_trace(tmp_path, PAIR)
    assert set(report.table["verdict"]) == {"PASS"}
    assert not report.doubts


@pytest.mark.usefixtures("few")
def test_other_numbers_that_the_trace_does_not_keep(tmp_path):
    """Of 150 whole numbers 64 are kept, and one of the others is wrong."""
    given = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    lost = next(i for i in range(given.size) if i not in set(sample.places(given.size)))

    def wrong(settings, tensors):
        port = Signs()
        port.lost = np.unravel_index(lost, given.shape)
        return port

    pair = replace(
        PAIR,
        make_torch=lambda weights, config, seed: TorchSigns(),
        make_nnx=lambda weights, config, reference: Signs(),
        cases=lambda reference, clip, seed: (parity.Case("__call__/x", (given,)),),
        offline=parity.Offline(lambda reference: {}, lambda settings, tensors: Signs()),
    )
    record_pair(pair, tmp_path, frames=1, size=(8, 8), seed=0, statistics=True)
    assert set(check_trace(tmp_path, pair).table["verdict"]) == {"PASS"}
    pair = replace(pair, offline=parity.Offline(lambda reference: {}, wrong))
    report = check_trace(tmp_path, pair)
    assert report.verdict == "FAIL"
    assert "values differ that the trace does not keep" in report.rows[-1].reason


class TorchHands(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)

    def forward(self, x):
        return self.table((x > 0).long())


class Hands(nnx.Module):
    lost = None

    def __init__(self, tensors):
        self.table = nnx.Embed(7, 4, rngs=nnx.Rngs(0))
        self.table.embedding[...] = jnp.asarray(tensors["table.weight"])

    def __call__(self, x):
        ids = (x > 0).astype(jnp.int32)
        return self.table(ids if self.lost is None else ids.at[self.lost].add(1))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kept", [False, True])
def test_other_numbers_that_a_module_hands_on(tmp_path, kept):
    """Its own code is wrong, whatever becomes of them inside."""
    given = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    places = set(sample.places(given.size))
    lost = next(i for i in range(given.size) if (i in places) == kept)

    def wrong(settings, tensors):
        port = Hands(tensors)
        port.lost = np.unravel_index(lost, given.shape)
        return port

    pair = replace(
        PAIR,
        make_torch=lambda weights, config, seed: TorchHands(),
        make_nnx=lambda weights, config, reference: Hands(
            {name: value.numpy() for name, value in reference.state_dict().items()}
        ),
        cases=lambda reference, clip, seed: (parity.Case("__call__/x", (given,)),),
        offline=parity.Offline(lambda reference: {}, wrong),
    )
    record_pair(pair, tmp_path, frames=1, size=(8, 8), seed=0, statistics=True)
    report = check_trace(tmp_path, pair)
    assert [fault.path for fault in report.faults] == [""]
    assert "of `table`" in report.rows[-1].reason


@pytest.mark.parametrize("entry", [0, 77])
def test_other_numbers_are_not(entry):
    ref, port = IDS, IDS.astype(np.int32)
    port[np.unravel_index(entry, port.shape)] += 1
    with Store() as store:
        for array, same in ((IDS.astype(np.int32), True), (port, False)):
            leaf = LeafMatch(Leaf("ids", store.put(ref)), Leaf("ids", store.put(array)))
            assert View(store).same(leaf) == same
            kept = {store.put(ref).digest.hex(): None}
            for sides in ((None, None), (Side(kept, None), None)):
                assert Sampled(store, *sides).same(leaf) == same


def test_a_number_that_the_other_type_cannot_hold():
    wide, narrow = np.array([1 << 32]), np.array([0], np.int32)
    with Store() as store:
        leaf = LeafMatch(Leaf("ids", store.put(wide)), Leaf("ids", store.put(narrow)))
        port = Side({store.put(narrow).digest.hex(): None}, None)
        assert not Sampled(store, None, port).same(leaf)
