"""Recorded arrays on disk: every distinct buffer is written once.

The file is unlinked as soon as it is open, so that a killed run leaves nothing behind.
"""

import os
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Shaped


@dataclass(frozen=True)
class Buffer:
    """A stored array: equal digests mean equal dtype and equal bytes."""

    digest: bytes
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


class Store:
    """An append-only file of arrays, shared by both sides of a run.

    `put` copies, so later in-place writes do not reach the record. Safe to use from several
    threads.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="parity-")  # noqa: SIM115 - closed by `close`
        self._offsets: dict[bytes, int] = {}
        self._end = 0
        self._lock = threading.Lock()

    def put(self, array: Shaped[np.ndarray, "..."]) -> Buffer:
        """Write `array` unless an equal one is already there."""
        flat, key = _bytes(array), digest(array)
        with self._lock:
            offset = self._offsets.get(key)
            if offset is None:
                offset = self._offsets[key] = self._end
                self._end += flat.nbytes
                _write(self._file.fileno(), flat, offset)
        return Buffer(key, offset, np.shape(array), array.dtype)

    def get(self, buffer: Buffer) -> Shaped[np.ndarray, "..."]:
        """Read a copy of a stored array."""
        out = np.empty(buffer.size, buffer.dtype)
        _read(self._file.fileno(), out.view(np.uint8), buffer.offset)
        return out.reshape(buffer.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self._end

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def digest(array: Shaped[np.ndarray, "..."]) -> bytes:
    """Equal for arrays of equal dtype and bytes; shapes do not count."""
    # 128 bits, not meant to withstand an adversary: the arrays are this run's own
    total = xxhash.xxh3_128(_bytes(array).data)
    total.update(f"{array.dtype.str} {array.dtype.name}".encode())
    return total.digest()


def _bytes(array: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, " n"]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _write(descriptor: int, flat: Shaped[np.ndarray, " n"], offset: int) -> None:
    view = flat.data
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _read(descriptor: int, flat: Shaped[np.ndarray, " n"], offset: int) -> None:
    view = flat.data
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise OSError("the temporary trace file is shorter than expected; was it truncated?")
        view, offset = view[count:], offset + count
