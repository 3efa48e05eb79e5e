import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parity.core import metrics
from parity.core.metrics import compare_arrays, distance

finite = st.floats(-1e6, 1e6, width=32)
pairs = hnp.array_shapes(max_dims=3, max_side=6).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float32, shape, elements=finite),
        hnp.arrays(np.float32, shape, elements=finite),
    )
)


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_figures_equal_plain_float64(pair):
    ref, port = pair
    r, p = ref.astype(np.float64), port.astype(np.float64)
    gap = np.abs(p - r)
    found = compare_arrays(ref, port)
    assert found.mae == pytest.approx(gap.mean(), rel=1e-12)
    assert found.mse == pytest.approx((gap**2).mean(), rel=1e-12)
    assert found.max_abs == gap.max()
    assert gap[found.worst_index] == gap.max()
    assert found.ref_rms == pytest.approx(np.sqrt((r**2).mean()), rel=1e-12)
    if np.abs(r).sum() > 0:
        assert found.rel_mae == pytest.approx(gap.sum() / np.abs(r).sum(), rel=1e-12)
        assert found.rel_l2 == pytest.approx(np.linalg.norm(gap) / np.linalg.norm(r), rel=1e-9)
        assert found.rel_linf == gap.max() / np.abs(r).max()
    mae, rel_l2, nonfinite = distance(ref, port)
    assert (mae, nonfinite) == (pytest.approx(found.mae, rel=1e-12), 0)
    assert rel_l2 == pytest.approx(found.rel_l2, rel=1e-9)


@pytest.mark.parametrize("size", [1, metrics.BLOCK - 1, metrics.BLOCK, 3 * metrics.BLOCK + 7])
def test_blocks_join(size):
    rng = np.random.default_rng(size)
    ref = rng.standard_normal(size).astype(np.float32)
    port = (ref + 1e-3 * rng.standard_normal(size)).astype(np.float32)
    gap = np.abs(port.astype(np.float64) - ref)
    found = compare_arrays(ref, port)
    assert found.mae == pytest.approx(gap.mean(), rel=1e-12)
    assert found.worst_index == (int(gap.argmax()),)


def test_percentiles_are_within_their_bins():
    rng = np.random.default_rng(0)
    ref = rng.standard_normal(100_000).astype(np.float32)
    port = (ref + 1e-6 * rng.standard_normal(ref.size)).astype(np.float32)
    gap = np.abs(port.astype(np.float64) - ref)
    found = compare_arrays(ref, port)
    assert found.p999 == pytest.approx(np.quantile(gap, 0.999), rel=0.04)
    ulps = gap / np.spacing(np.abs(ref)).astype(np.float64)
    assert found.ulp_p99 == pytest.approx(np.quantile(ulps, 0.99), rel=0.04)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_neighbours_are_one_ulp_apart(dtype):
    ref = np.array([1.0, 1.5, 3.0, 100.0]).astype(dtype)
    up = ref.copy()
    up.view(f"u{ref.itemsize}")[...] += 1
    assert compare_arrays(ref, up).ulp_p99 == pytest.approx(1, rel=0.04)
    assert compare_arrays(ref, ref).ulp_p99 == 0


def test_finiteness_must_be_alike():
    ref = np.array([1, np.nan, np.inf, -np.inf, 2], np.float32)
    assert compare_arrays(ref, ref).mae == 0
    assert compare_arrays(ref, ref).nonfinite == 0
    for index in range(4):
        port = ref.copy()
        port[index] = 7 if index else np.nan
        found = compare_arrays(ref, port)
        assert found.nonfinite == 1
        assert found.mae == math.inf
        assert distance(ref, port) == (math.inf, math.inf, 1)
    assert compare_arrays(ref, np.array([1, np.nan, -np.inf, -np.inf, 2], "f4")).nonfinite == 1


def test_other_kinds_of_numbers():
    assert compare_arrays(np.array([1, 2]), np.array([1, 4])).mae == 1
    assert compare_arrays(np.array([True]), np.array([False])).mae == 1
    found = compare_arrays(np.array([1j, 2], np.complex64), np.array([1j, 2 + 3j], np.complex64))
    assert found.max_abs == 3


def test_nothing_is_not_equal():
    empty = np.zeros((0, 3), np.float32)
    assert math.isnan(compare_arrays(empty, empty).mae)
    assert math.isnan(distance(empty, empty)[0])


def test_something_of_nothing_is_infinite():
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert compare_arrays(zero, one).rel_l2 == math.inf
    assert compare_arrays(zero, zero).rel_l2 == 0


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        compare_arrays(np.zeros(2), np.zeros(3))
