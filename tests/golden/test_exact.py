"""Numbers that are exact: PyTorch's ids have 64 bits, JAX's 32."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.pair import Pair
from parity.traces.check import check_trace
from parity.traces.compare import compare_traces
from parity.traces.record import record_pair
from tests.nets import torch_of
from tests.ports import fill, nnx_of


def make_table(tensors):
    table, out = nnx.Embed(7, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    return fill(nnx_of(lambda self, ids: self.out(self.table(ids)), table=table, out=out), tensors)


def make_torch(options, seed):
    torch.manual_seed(seed)
    return torch_of(
        lambda self, ids: self.out(self.table(ids)),
        table=torch.nn.Embedding(7, 4), out=torch.nn.Linear(4, 3),
    )  # fmt: skip


IDS = np.random.default_rng(0).integers(0, 7, (30, 5))

PAIR = Pair(
    name="table",
    make_torch=make_torch,
    make_nnx=lambda options, reference: make_table(
        {name: value.numpy() for name, value in reference.state_dict().items()}
    ),
    cases=lambda reference, options, seed: (parity.Case("__call__/ids", (IDS,)),),
    rungs=(),
    offline=parity.Offline(
        settings=lambda reference: {}, make_nnx=lambda settings, tensors: make_table(tensors)
    ),
)


def recorded(pair, folder):
    record_pair(pair, folder, seed=0)
    return folder


def test_ids_are_the_same_in_another_width(tmp_path):
    report = check_trace(recorded(PAIR, tmp_path), PAIR)
    assert set(report.table["verdict"]) == {"PASS"}
    assert not report.doubts


X = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)


def handing(width=torch.int64, lost=None, port_lost=None):
    """A pair that makes whole numbers and hands them on, one of them wrong on one side or none."""

    def forward(self, x):
        ids = (x > 0).to(width)
        if lost is not None:
            ids[lost] += 1
        return self.table(ids)

    def call(self, x):
        ids = (x > 0).astype(jnp.int32)
        return self.table(ids if port_lost is None else ids.at[port_lost].add(1))

    def make_torch(options, seed):
        torch.manual_seed(seed)
        return torch_of(forward, table=torch.nn.Embedding(7, 4))

    def make_nnx(settings, tensors):
        return fill(nnx_of(call, table=nnx.Embed(7, 4, rngs=nnx.Rngs(0))), tensors)

    return replace(
        PAIR,
        make_torch=make_torch,
        cases=lambda reference, options, seed: (parity.Case("__call__/x", (X,)),),
        offline=parity.Offline(lambda reference: {}, make_nnx),
    )


def test_other_numbers_that_a_module_hands_on(tmp_path):
    """Its local computation is wrong, whatever becomes of them inside."""
    folder = recorded(handing(), tmp_path)
    assert check_trace(folder, handing()).verdict == "PASS"
    report = check_trace(folder, handing(port_lost=(3, 2)))
    assert [fault.path for fault in report.faults] == [""]
    assert "changes it in `input` of `table`" in report.rows[-1].reason


@pytest.mark.parametrize("lost", [(0, 0), (29, 4)])
def test_other_numbers_of_two_traces(tmp_path, lost):
    """They are told from equal ones of another width by their values."""
    before = recorded(handing(), tmp_path / "before")
    same = compare_traces(before, recorded(handing(torch.int32), tmp_path / "same"))
    assert set(same.table["verdict"]) == {"PASS"}
    assert (same.table["excl_mae"] == 0).all()
    report = compare_traces(before, recorded(handing(torch.int32, lost), tmp_path / "other"))
    inside, root = report.rows
    assert inside.verdict == "UNKNOWN"
    assert "what it was given is not the same" in inside.reason
    assert [fault.path for fault in report.faults] == [root.path] == [""]
    assert "changes it in `input` of `table`" in root.reason
