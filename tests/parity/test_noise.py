import numpy as np
import pytest
import torch

from parity.capture.torch import record
from parity.core.problems import other_shape
from parity.force.float64 import TorchModules
from parity.measure.noise import bounded, score


def test_float64_run_on_the_recorded_inputs(pair, image, store):
    reference = pair[0]
    trace = record(reference, "__call__", (image,), {}, store=store, layout={})
    calls = {(call.path, call.number): call for call in trace.calls}
    second = calls["block", 1]  # its scale argument is a plain number
    held = {name: id(tensor) for name, tensor in reference.block.state_dict(keep_vars=True).items()}
    found = TorchModules({"block": reference.block}, "__call__").whole(second, store)
    given = next(leaf for leaf in second.inputs if leaf.buffer)
    x = torch.from_numpy(np.moveaxis(store.get(given.buffer), -1, 1)).double()
    left = {name: id(tensor) for name, tensor in reference.block.state_dict(keep_vars=True).items()}
    assert left == held
    assert {tensor.dtype for tensor in reference.block.parameters()} == {torch.float32}
    with torch.no_grad():
        expected = reference.double().block(x, scale=0.5)
    assert found["0"].dtype == np.float64
    np.testing.assert_array_equal(found["0"], np.moveaxis(expected[0].numpy(), 1, -1))
    np.testing.assert_array_equal(found["1.mean"], expected[1]["mean"].numpy())


def test_r_counts_in_the_reference_own_error():
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(10_000)
    noise = 1e-6 * rng.standard_normal(exact.size)
    ref = (exact + noise).astype(np.float32)
    error = score(ref, (exact + 5 * noise).astype(np.float32), exact)
    assert error.r == pytest.approx(5, rel=0.02)
    assert error.floor_rel_l2 == pytest.approx(1e-6, rel=0.05)
    assert not error.moved


def test_r_has_a_floor_of_four_roundings():
    exact = np.ones(100)
    ref = exact.astype(np.float32)
    port = ref + np.float32(2**-22)
    error = score(ref, port, exact)
    assert error.r == pytest.approx(1.0)
    assert error.moved  # the reference made no error at all


def test_the_bound_never_passes_what_r_would_fail():
    rng = np.random.default_rng(1)
    exact = rng.standard_normal(5_000)
    decided = 0
    for scale in 10.0 ** rng.uniform(-9, -4, 200):
        ref = (exact * (1 + 10 ** rng.uniform(-9, -5) * rng.standard_normal())).astype(np.float32)
        port = (ref + scale * rng.standard_normal(exact.size)).astype(np.float32)
        gap = port.astype(np.float64) - ref
        rel_l2 = float(np.linalg.norm(gap) / np.linalg.norm(ref.astype(np.float64)))
        if bounded(rel_l2, 10, ref.dtype):
            decided += 1
            assert score(ref, port, exact).r <= 10
    assert decided > 20
    assert not bounded(0.0, 10, np.dtype("int32"))


def test_what_cannot_be_scored():
    ones = np.ones(3, np.float32)
    assert score(ones, np.ones(4, np.float32)).problem == other_shape((3,), (4,))
    assert np.isnan(score(ones, ones).r)
    assert np.isnan(score(np.arange(3), np.arange(3), np.arange(3.0)).r)
    broken = np.array([1, np.nan, 1], np.float32)
    assert score(ones, broken, np.ones(3)).nonfinite == 1
    hidden = np.array([1, np.inf, 2])  # overflowed alike on both sides: the rest counts
    assert score(hidden.astype(np.float32), hidden.astype(np.float32), hidden).r == 0
