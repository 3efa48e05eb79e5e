import ml_dtypes
import numpy as np
import pytest

from parity.store import MAPPED, Store


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.float64(3.5),
        np.array([], np.int32),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.arange(3).astype(ml_dtypes.bfloat16),
        np.arange(12, dtype=np.int64).reshape(3, 4).T,
    ],
    ids=["float32", "0-d", "empty", "bool", "complex", "bfloat16", "strided"],
)
def test_get_returns_what_put_took(array):
    with Store() as store:
        back = store.get(store.put(array))
    assert back.shape == np.shape(array)
    assert back.dtype == array.dtype
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()


def test_put_copies():
    with Store() as store:
        array = np.ones(4)
        buffer = store.put(array)
        array[:] = 2
        assert store.get(buffer).sum() == 4


def test_equal_arrays_are_written_once():
    with Store() as store:
        one = store.put(np.ones((2, 3), np.float32))
        size = store.nbytes
        assert store.put(np.ones((2, 3), np.float32)) == one
        assert store.put(np.ones(6, np.float32)).digest == one.digest  # another shape, same bytes
        assert store.nbytes == size == 24


def test_equal_bytes_of_another_dtype_differ():
    with Store() as store:
        zero = store.put(np.zeros(4, np.float32))
        assert store.put(np.zeros(4, np.int32)).digest != zero.digest
        assert store.put(np.zeros(4, np.float16)).digest != zero.digest


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.complex128, np.bool_])
def test_a_large_array_is_read_and_may_be_written_to(dtype):
    values = np.arange(MAPPED + 3).reshape(1, -1) % 199
    with Store() as store:
        store.put(np.ones(3, np.int8))  # so that the next one does not start the file
        buffer = store.put(values.astype(dtype))
        first, second = store.get(buffer), store.get(buffer)
        first[...] = 0
        np.testing.assert_array_equal(second, values.astype(dtype))
        np.testing.assert_array_equal(store.get(buffer), second)
    assert (type(second), second.flags.aligned) == (np.ndarray, True)
    np.testing.assert_array_equal(second, values.astype(dtype))  # closed or not
