"""One channel that is wrong beside others that are much larger."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import parity
from parity.measure.channels import suspicious, worst_channel
from parity.pipeline import run_pair
from tests.nets import torch_of
from tests.ports import nnx_of

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)


THEIRS = torch_of(lambda _, x: torch.cat([x * 1e6, x.sigmoid()], -1))


def ours(slope):
    return nnx_of(
        lambda self, x: jnp.concatenate([x * 1e6, jax.nn.sigmoid(self.slope * x)], -1), slope=slope
    )


@pytest.mark.parametrize("slope", [-1.0, 1.01, 1.0])
def test_a_small_channel_is_looked_at_by_itself(slope):
    report = parity.compare(THEIRS, ours(slope), (X,))
    row = report.rows[-1]
    assert row.exclusive.rel_l2 < 1e-6
    if slope == 1.0:
        assert report.verdict == "PASS"
    else:
        assert report.verdict == "WARN"
        assert "is small beside the others" in row.reason


@pytest.mark.parametrize("slope", [1.01, 1.0])
def test_in_a_ladder_such_a_channel_asks_for_float64(slope):
    """Where R holds by the relative error of the whole, float64 is left out."""
    pair = parity.Pair(
        name="channels",
        make_torch=lambda options, seed: THEIRS,
        make_nnx=lambda options, reference: ours(slope),
        cases=lambda reference, options, seed: (parity.Case("__call__/x", (X,)),),
        rungs=(),
    )
    row = run_pair(pair).rows[-1]
    if slope == 1.0:
        assert row.verdict == "PASS"
        assert row.exclusive.bounded
    else:
        assert "is small beside the others" in row.reason


def test_a_channel_that_cancels_is_none():
    """All that is left of it is rounding, in PyTorch too."""

    def forward(_, x):
        return torch.stack([x.sum(-1), x.sum(-1) - x.double().sum(-1).to(x.dtype)], -1)

    def call(_, x):
        whole = x.sum(-1)
        exact = sum(x[:, i] for i in reversed(range(x.shape[1])))
        return jnp.stack([whole, whole - exact], -1)

    report = parity.compare(torch_of(forward), nnx_of(call), (X,))
    assert "channel" not in report.rows[-1].reason


def test_channels_one_by_one():
    draw = np.random.default_rng(1)
    wide = draw.standard_normal((3, 5000, 4)) * [1, 1e3, 1, 1e-4]
    ref = (wide * (1 + 1e-7 * draw.standard_normal(wide.shape))).astype(np.float32)
    port = (wide * (1 + 1e-7 * draw.standard_normal(wide.shape))).astype(np.float32)
    port[0, 0] = ref[0, 0] = np.nan
    port[0, 1] = ref[0, 1] = (np.inf, -np.inf, np.inf, np.inf)
    assert not suspicious(ref, port)
    assert worst_channel(ref, port, wide) is None
    port[..., 3] *= 1.01
    assert suspicious(ref, port)
    part = worst_channel(ref, port, wide)
    assert part.channel == 3
    assert part.rel_l2 == pytest.approx(0.01, rel=1e-3)
    ref[..., 3] = wide[..., 3] = 0  # nothing that it could be measured by
    assert not suspicious(ref, port)
    assert worst_channel(ref, port, wide) is None


def test_what_a_mask_fills_hides_nothing():
    """Beside -1e9 the others are nothing: R of all was 0 where they were negated."""
    reference = torch_of(lambda _, x: x.masked_fill(torch.arange(x.shape[-1]) >= 4, -1e9))
    port = nnx_of(lambda _, x: jnp.where(jnp.arange(x.shape[-1])[None] >= 4, -1e9, -x))
    assert parity.compare(reference, port, (X,)).verdict == "FAIL"
