"""Recorded arrays on disk: every distinct buffer is written once.

The file is unlinked as soon as it is open, so that a killed run leaves nothing behind.
"""

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Shaped

WAITING = 1 << 28
"""Bytes that may wait to be written: a model computes on while the disk is slow."""

MAPPED = 1 << 18
"""Bytes from which on an array is read as a private mapping of the file: its pages are those that
hold the file already, where a copy would need new ones, which takes longer than to compare them.
As long as it is held it holds the file too."""

_ALIGNED = 64
"""Arrays start at multiples of this: XLA uses such memory as it is, and copies other."""


@dataclass(frozen=True)
class Buffer:
    """A stored array: equal digests mean equal dtype and equal bytes.

    The offset is that in the file, negative for one that lies elsewhere.
    """

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

    Safe to use from several threads. Writes happen in the background; one that fails is raised by
    the next call.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="parity-")  # noqa: SIM115 - closed by `close`
        self._offsets: dict[bytes, int] = {}
        self._elsewhere: list[Callable[[], Shaped[np.ndarray, ...]]] = []
        self._end = 0
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "parity-store")
        self._waiting: deque[tuple[int, Future[int]]] = deque()
        self._waiting_bytes = 0

    def put(self, array: Shaped[np.ndarray, "..."], *, copy: bool = True) -> Buffer:
        """Write `array` unless an equal one is already there.

        A copy keeps later writes to it out of the record; leave it out where nobody else holds it.
        """
        flat, key = _bytes(array), digest(array)
        with self._lock:
            offset = self._offsets.get(key)
            if offset is None:
                offset = self._offsets[key] = -(-self._end // _ALIGNED) * _ALIGNED
                self._end = offset + flat.nbytes
                self._write_later(flat.copy() if copy else flat, offset)
        return Buffer(key, offset, np.shape(array), array.dtype)

    def adopt(
        self,
        key: bytes,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read: Callable[[], Shaped[np.ndarray, "..."]],
    ) -> Buffer:
        """Take an array that lies elsewhere: `key` is its digest, `read` gives a copy of it.

        It is not written here, and an equal one that is put later is not either.
        """
        with self._lock:
            if key not in self._offsets:
                self._elsewhere.append(read)
                self._offsets[key] = -len(self._elsewhere)
            return Buffer(key, self._offsets[key], shape, dtype)

    def get(self, buffer: Buffer) -> Shaped[np.ndarray, "..."]:
        """Read a stored array; the caller may write to it, which does not change the record."""
        if buffer.offset < 0:
            return self._elsewhere[-1 - buffer.offset]().reshape(buffer.shape)
        with self._lock:
            while self._waiting and self._waiting[0][0] <= buffer.offset:
                self._wait_for_oldest()
            if buffer.size * buffer.dtype.itemsize >= MAPPED:
                # no room for another mapping (each holds a file descriptor): a copy, below
                with suppress(OSError, ValueError):
                    # under the lock: it moves the position in the file
                    mapped = np.memmap(self._file, buffer.dtype, "c", buffer.offset, buffer.shape)
                    return np.asarray(mapped)
        out = np.empty(buffer.size, buffer.dtype)
        _read(self._file.fileno(), out.view(np.uint8), buffer.offset)
        return out.reshape(buffer.shape)

    @property
    def nbytes(self) -> int:
        """Length of the file."""
        return self._end

    def close(self) -> None:
        """Give the disk space back, in the background: that takes seconds for a large file."""
        try:
            with self._lock:
                while self._waiting:
                    self._wait_for_oldest()
        finally:
            self._writer.submit(self._file.close)
            self._writer.shutdown(wait=False)

    def _write_later(self, flat: Shaped[np.ndarray, " n"], offset: int) -> None:
        while self._waiting_bytes > WAITING:
            self._wait_for_oldest()
        self._waiting_bytes += flat.nbytes
        future = self._writer.submit(_write, self._file.fileno(), flat, offset)
        self._waiting.append((offset, future))

    def _wait_for_oldest(self) -> None:
        _, future = self._waiting.popleft()
        self._waiting_bytes -= future.result()

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


def _write(descriptor: int, flat: Shaped[np.ndarray, " n"], offset: int) -> int:
    view = flat.data
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
    return flat.nbytes


def _read(descriptor: int, flat: Shaped[np.ndarray, " n"], offset: int) -> None:
    view = flat.data
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise OSError("the temporary trace file is shorter than expected; was it truncated?")
        view, offset = view[count:], offset + count
