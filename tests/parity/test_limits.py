"""The limits on R against the measurements that docs/thresholds.md records."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import parity
from parity.core.limits import TABLE, r_limit
from parity.core.metrics import rms, unit_roundoff
from parity.measure.noise import of_sum
from tests.faultzoo import zoo
from tests.nets import ported, randomise, torch_of
from tests.ports import nnx_of
from tools import measure_r
from tools.measure_r import CORRECT, of_case, of_leaf, table_of
from tools.tables import Table, marked

ROOT = Path(parity.__file__).parents[1]
DOCUMENT = ROOT / "docs/thresholds.md"
LIMITS = {line.family: line for line in TABLE}


def measured(name):
    """The rows of a table of the document."""
    command = f"python -m tools.measure_r {name}"
    return Table.read(dict(marked(DOCUMENT))[command]).rows


def test_every_limit_is_documented():
    assert measured("limits") == tuple(measure_r.limits(0))


def test_the_limits_lie_between_what_is_right_and_what_is_wrong():
    for table in ("correct", "gradients"):
        assert [row[0] for row in measured(table)] == list(CORRECT)
        for name, family, _, largest in measured(table):
            assert family == r_limit(name.partition(",")[0]).family, name
            assert float(largest) < LIMITS[family].fail / 2, name
    assert [row[0] for row in measured("zoo --seeds 3")] == [case.name for case in zoo.CASES]
    for name, norms, others, fault, family in measured("zoo --seeds 3"):
        for own, healthy in (("norm", norms), ("other", others)):
            assert not healthy or float(healthy) < LIMITS[own].warn, name
        assert float(fault) > 3 * LIMITS[family].fail, name


def test_the_class_name_decides():
    assert r_limit("CogVideoXSpatialNorm3D").family == "norm"
    assert r_limit("BatchNorm2d").fail == 30
    assert r_limit("Conv2d").fail == 10
    assert r_limit("NormalizedAttention").fail == 10


def test_the_reference_gets_its_arrays_as_users_have_them():
    """Channels last in memory PyTorch's gradient of this group norm is off by a tenth: then R says
    nothing, and a port that is as bad passes. A rounding of a mean of 1000 is 6e-5."""
    found = table_of(CORRECT["GroupNorm, mean/std 1000"], 0, gradients=True)
    found = found[found.leaf.str.startswith("grad(")]
    assert found.floor_rel_l2.max() < 100 * 6e-5
    assert set(found.verdict) == {"PASS"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_what_is_correct_does_not_fail(name):
    fail = r_limit(name.partition(",")[0]).fail
    for gradients in (False, True):
        assert max(of_leaf(CORRECT[name], seed, gradients) for seed in range(3)) < fail


@pytest.mark.slow
@pytest.mark.parametrize("case", zoo.CASES, ids=lambda case: case.name)
def test_a_fault_is_far_from_passing(case):
    for _, kind, r in of_case(case, False, 0):
        assert r < r_limit(kind).warn
    found = [(kind, r) for path, kind, r in of_case(case, True, 0) if path == case.path]
    assert max(r for _, r in found) > 3 * r_limit(found[0][0]).fail


@pytest.mark.parametrize("count", [2**12, 2**14])
def test_a_long_sum_is_allowed_the_roundings_that_it_has(count):
    """Summed one term after the other, as `cumsum` does on every processor: n terms lose about
    0.3 sqrt(n) roundings, and sqrt(n) / 16 times four are allowed for."""
    rng = np.random.default_rng(0)
    terms = np.multiply(*rng.standard_normal((2, 2**20 // count, count)).astype(np.float32))
    wide, found = terms.sum(1, np.float64), terms.cumsum(1)[:, -1]
    roundings = rms(found - wide) / (4 * unit_roundoff(found.dtype) * rms(wide))
    assert 1 / 2 < roundings / of_sum(1, count) < 2
    assert roundings > r_limit("Conv2d").warn  # without the allowance


@pytest.mark.parametrize("mean", [30, 100, 300])
@pytest.mark.parametrize("seed", range(3))
def test_a_norm_that_the_port_writes_out_has_the_limits_of_a_norm(mean, seed):
    """Around a mean a right norm is some roundings off: more than other code."""
    parts = {"norm": torch.nn.GroupNorm(2, 8), "conv": torch.nn.Conv2d(8, 8, 1)}
    reference = randomise(torch_of(lambda self, x: self.conv(self.norm(x)), **parts))
    norm = reference.norm
    scale, bias = (jnp.asarray(one.detach().numpy()) for one in (norm.weight, norm.bias))

    def written_out(self, x):
        g = x.reshape(*x.shape[:3], 2, 4)
        g = g - g.mean((1, 2, 4), keepdims=True)
        g = g / jnp.sqrt(jnp.square(g).mean((1, 2, 4), keepdims=True) + 1e-5)
        return self.conv(g.reshape(x.shape) * scale[None, None, None] + bias[None, None, None])

    port = nnx_of(written_out, conv=ported(reference.conv))
    x = mean + np.random.default_rng(seed).standard_normal((2, 8, 6, 6)).astype(np.float32)
    report = parity.compare(reference, port, (x,), check_compiled=False)
    assert not report.faults
    rows = {row.path: row.verdict for row in report.rows}
    assert rows[""] == "PASS"
