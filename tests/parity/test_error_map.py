import ml_dtypes
import numpy as np
import pytest

from parity.core.codec import plain, typed
from parity.core.error_map import EDGES, ErrorMap
from parity.core.exceptions import InputError
from parity.diagnose.error_map import error_map
from tests.nets import torch_of
from tests.ports import nnx_of
from tests.reports import compare

REF = np.random.default_rng(0).standard_normal((2, 5, 8, 9, 6)).astype(np.float32)


def along(found, axis):
    return next(one.errors for one in found.along if one.axis == axis)


def test_an_error_in_one_column_of_one_frame():
    port = REF.copy()
    port[1, 3, :, 8] += 0.5
    found = error_map(REF, port, leaf="x", to="a.conv")
    assert (found.leaf, found.to, found.free) == ("x", "a.conv", False)
    assert found.unit == pytest.approx(float(np.sqrt((REF.astype(float) ** 2).mean())), rel=1e-2)
    assert np.flatnonzero(along(found, "item")).tolist() == [1]
    assert np.flatnonzero(along(found, "frame")).tolist() == [3]
    assert np.flatnonzero(along(found, "column")).tolist() == [8]
    assert np.count_nonzero(along(found, "row")) == 8
    # in one of 9 columns, in one of 10 images
    assert along(found, "row")[0] == pytest.approx(0.5 / found.unit / 90**0.5, rel=0.02)
    assert found.worst == "item 1, frame 3"
    assert (found.heat_axes, found.heat_size) == (("row", "column"), (8, 9))
    heat = np.array(found.heat)
    assert heat.shape == (8, 9)
    assert np.allclose(heat[:, 8], 0.5 / found.unit, rtol=0.02)
    assert not heat[:, :8].any()
    assert found.counts[0] == REF.size - 8 * 6
    assert sum(found.counts) == REF.size
    bin_of_all = 2 + int(np.searchsorted(EDGES, 0.5 / found.unit)) - 1
    assert found.counts[bin_of_all] == 8 * 6


def test_a_large_array_is_reduced_and_a_single_wrong_entry_stays():
    ref = np.ones((1, 200, 300, 4), np.float32)
    port = ref.copy()
    port[0, 150, 217, 2] = 5
    found = error_map(ref, port)
    heat = np.array(found.heat)
    assert heat.shape == (64, 64)
    assert found.heat_size == (200, 300)
    assert heat.max() == pytest.approx(4 / 4**0.5)
    assert np.argwhere(heat).tolist() == [[150 * 64 // 200, 217 * 64 // 300]]
    assert [len(one.errors) for one in found.along] == [1, 128, 128, 4]
    assert np.flatnonzero(along(found, "row")).tolist() == [150 * 128 // 200]


def test_what_is_finite_on_one_side_only_counts_as_the_largest():
    ref, port = REF.copy(), REF.copy()
    ref[0, 0, 0, 0, 0] = port[0, 0, 0, 0, 0] = np.nan
    ref[0, 0, 0, 0, 1] = port[0, 0, 0, 0, 1] = np.inf
    port[1, 2, 3, 4, 5] = np.nan
    ref[1, 2, 3, 4, 4] = np.inf
    found = error_map(ref, port)
    assert found.counts[-1] == 2
    assert found.counts[0] == REF.size - 2
    assert found.worst == "item 1, frame 2"
    assert np.isinf(found.heat[3][4])
    assert np.isinf(along(found, "frame")).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("ref", "axes", "size"),
    [
        (np.arange(7.0), ("", "axis 0"), (1, 7)),
        (np.ones((3, 4), ml_dtypes.bfloat16), ("item", "channel"), (3, 4)),
        (np.ones((2, 3, 4), np.complex64), ("position", "channel"), (3, 4)),
        (np.arange(12).reshape(3, 4), ("item", "channel"), (3, 4)),
        (np.zeros((3, 4), bool), ("item", "channel"), (3, 4)),
        (np.ones((2, 2, 2, 3, 4, 5)), ("axis 3", "axis 4"), (3, 4)),
    ],
    ids=["vector", "bfloat16", "complex", "integers", "booleans", "six axes"],
)
def test_ranks_and_types(ref, axes, size):
    port = ref.copy()
    port.flat[-1] = 1 if ref.dtype == bool else port.flat[-1] * 3 + 1
    found = error_map(ref, port)
    assert (found.heat_axes, found.heat_size) == (axes, size)
    assert found.counts[0] == ref.size - 1
    assert found.heat[-1][-1] > 0
    assert found.unit > 0


def test_arrays_that_cannot_be_subtracted():
    assert error_map(REF, REF[:1]) is None
    assert error_map(np.float32(1), np.float32(2)) is None
    assert error_map(np.zeros((0, 3)), np.zeros((0, 3))) is None


def test_a_fault_has_the_error_map_of_what_it_returns(faulty):
    fault = next(fault for fault in faulty.faults if fault.path == "stem")
    found = fault.error_map
    assert (found.to, found.free) == ("", False)
    assert [one.size for one in found.along] == [2, 7, 9, 8]
    # a bias of 1 everywhere
    assert np.allclose(found.heat, 1 / found.unit, rtol=0.02)


def test_a_fault_has_the_error_map_of_what_it_hands_on(faulty):
    fault = next(fault for fault in faulty.faults if fault.path == "blocks.0")
    found = fault.error_map
    assert (found.to, found.leaf) == ("blocks.0.norm", "input")
    heat = np.array(found.heat)
    # upside down: the middle row of 7 is right
    assert not heat[3].any()
    assert (heat[[0, 1, 2, 4, 5, 6]] > 0).all()
    rows = [row for row in faulty.rows if row.path == "blocks.0"]
    assert {row.child_inputs > 0.1 for row in rows} == {True}
    assert all(row.own == row.child_inputs for row in rows)
    assert {row.child_inputs for row in faulty.rows if row.path != "blocks.0"} == {0.0}


def test_an_array_without_channels_is_drawn_by_its_last_axes():
    ref = np.ones((2, 3, 7, 9), np.float32)
    port = ref.copy()
    port[1, 2, 4, 6] += 1
    found = error_map(ref, port, named=False)
    assert found.worst == "entry 1 of axis 0, entry 2 of axis 1"
    assert (found.heat_axes, found.heat_size) == (("axis 2", "axis 3"), (7, 9))
    assert np.argwhere(found.heat).tolist() == [[4, 6]]


def test_an_error_map_that_cannot_be_made_loses_no_fault(monkeypatch):
    def fail(found, scene):
        raise MemoryError("no room for the error")

    monkeypatch.setattr("parity.run.explain.error_map_of", fail)
    report = compare(torch_of(lambda _, x: x), nnx_of(lambda _, x: 2 * x), (REF,))
    fault = report.first_fault
    assert report.verdict == "FAIL"
    assert (fault.cause, fault.error_map) == ("scale_or_offset", None)
    assert fault.evidence.endswith(
        "where in the array is not known: MemoryError: no room for the error"
    )


@pytest.mark.parametrize(
    "change",
    [{"along": []}, {"counts": [1]}, {"counts": []}, {"heat": []}, {"heat": [[1.0], []]}],
    ids=str,
)
def test_what_is_read_can_be_written(change):
    made = plain(error_map(np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)))
    assert typed(made, ErrorMap, "it")
    with pytest.raises(InputError, match="it: no error map"):
        typed(made | change, ErrorMap, "it")
