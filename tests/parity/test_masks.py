import ml_dtypes
import numpy as np
import pytest

from parity.measure.masks import unmasked

SCORES = np.array([[0.5, -1e9, -1e9], [2.0, -3.0, -1e9]], np.float32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_both_sides_fill_counts_nowhere(dtype):
    ref = SCORES.astype(dtype)
    port = ref.copy()
    port[0, 0], port[1, 2] = 1.0, 4.0
    before = ref.copy(), port.copy()
    theirs, ours = unmasked(ref, port)
    assert theirs.dtype == ours.dtype == dtype
    assert np.isinf(theirs).tolist() == [[False, True, True], [False, False, False]]
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(theirs))
    assert (ours[0, 0], ours[1, 2]) == (1.0, 4.0)
    np.testing.assert_array_equal((ref, port), before)


@pytest.mark.parametrize(
    "ref",
    [
        np.array([1e9, 1.0, 2.0], np.float32),  # one large value is no filling
        np.array([5e3, 5e3, 1.0], np.float32),  # nor are values that a model may have
        np.array([7.0, 7.0, 7.0], np.float32),
        np.array([-np.inf, -np.inf, 1.0], np.float32),
        np.array([10**9, 10**9, 1], np.int32),
        np.zeros((0, 3), np.float32),
    ],
)
def test_what_is_no_mask_stays(ref):
    theirs, ours = unmasked(ref, ref * 2)
    np.testing.assert_array_equal(theirs, ref)
    np.testing.assert_array_equal(ours, ref * 2)
