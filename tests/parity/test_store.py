import resource
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.capture import nnx as capture_nnx
from parity.capture import torch as capture_torch
from parity.core.store import MAPPED, Store
from tests.ports import nnx_of


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


def test_an_array_that_vanished_elsewhere_is_said():
    with Store() as other:
        gone = other.put(np.arange(3.0))
    with Store() as store:
        store.adopt(lambda buffer: None)
        with pytest.raises(parity.InputError, match=r"[0-9a-f]{32}\.safetensors: its array was"):
            store.get(gone)


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
    assert (type(second), second.ctypes.data % 64) == (np.ndarray, 0)
    np.testing.assert_array_equal(second, values.astype(dtype))  # closed or not


def test_arrays_are_read_where_no_more_files_can_be_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Store() as store:
        buffer = store.put(np.arange(MAPPED))
        held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 8, hard))
        try:
            held = [store.get(buffer) for _ in range(40)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert all((array == held[0]).all() for array in held)


def large(value):
    return np.full((4, MAPPED), value, np.float32)


def test_what_torch_writes_to_afterwards_is_recorded_as_it_was():
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU(inplace=True))
    with Store() as store:
        trace = capture_torch.record(model, "__call__", (large(-1),), {}, store=store, layout={})
        first, last = trace.calls[0].outputs[0].buffer, trace.calls[-1].outputs[0].buffer
        assert (store.get(first).max(), store.get(last).max()) == (-1, 0)


class Refilled(nnx.Module):
    """Hands the same memory on twice, with other values."""

    def __init__(self):
        self.inner = nnx_of(lambda _, x: x * 2)

    def __call__(self, x):
        room = (torch.tensor(np.asarray(x)) + 10).numpy()  # aligned as XLA wants it
        first = self.inner(jax.device_put(room, may_alias=True)).block_until_ready()
        room += 1
        return first + self.inner(jax.device_put(room, may_alias=True))


def test_memory_that_a_port_uses_again_is_recorded_as_it_was():
    with Store() as store:
        trace = capture_nnx.record(Refilled(), "__call__", (large(1),), {}, store=store)
        given = [store.get(call.inputs[0].buffer) for call in trace.calls if call.path == "inner"]
        assert [array.max() for array in given] == [11, 12]


def test_a_report_does_not_keep_the_file():
    torch_module, port = torch.nn.Identity(), nnx.Dropout(0.5, deterministic=True)
    report = parity.compare(torch_module, port, (large(1),))
    (output,) = report.outputs.values()
    assert output.base is None
