"""Recorded arrays on disk: every distinct buffer is written once.

The file is unlinked as soon as it is open, so that a killed run leaves nothing behind.
"""

import math
import re
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import ml_dtypes
import numpy as np
import xxhash
from jaxtyping import Shaped

from parity.core.codec import stored_as, typed
from parity.core.exceptions import InputError, shown

Array = Shaped[np.ndarray, "..."]

MAPPED = 1 << 18
"""Bytes from which on an array is read as a private mapping of the file: its pages are those that
hold the file already, where a copy would need new ones, which takes longer than to compare them.
As long as it is held it holds the file too."""

_ALIGNED = 64
"""Arrays start at multiples of this: XLA uses such memory as it is, and copies other."""

DIGEST = re.compile(r"[0-9a-f]{32}")

DIMENSIONS = 32
"""Of an array, at most: every NumPy has them."""

TYPES = frozenset(
    ["bool", "complex64", "complex128", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of that name, bfloat16 and its like among them.

    Raises:
        InputError: it is no type of numbers.
    """
    small = getattr(ml_dtypes, str(name), None)
    if isinstance(small, type) and issubclass(small, np.generic):
        return np.dtype(small)
    if str(name) not in TYPES:
        raise InputError(f"{shown(name)} is no type of numbers")
    return np.dtype(name)


def _digest_of(text: Any) -> bytes:
    if not DIGEST.fullmatch(str(text)):
        raise InputError(f"{shown(text)} is no digest of an array")
    return bytes.fromhex(text)


def _shape_of(value: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = typed(value, tuple[int, ...], "shape")
    if len(shape) > DIMENSIONS or any(not 0 <= size < 1 << 48 for size in shape):
        raise InputError(f"{shown(shape)} is no shape of an array")
    return shape


@dataclass(frozen=True)
class Buffer:
    """A stored array: equal digests mean equal dtype and equal bytes."""

    digest: bytes = field(metadata=stored_as(bytes.hex, _digest_of))
    shape: tuple[int, ...] = field(metadata=stored_as(list, _shape_of))
    dtype: np.dtype[Any] = field(metadata=stored_as(attrgetter("name"), dtype_of))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def text(self) -> str:
        """Type and shape, as messages have them."""
        return f"{self.dtype.name}{list(self.shape)}"


class Store:
    """An append-only file of arrays, shared by both sides of a run.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="parity-")  # noqa: SIM115 - closed at the end
        self._offsets: dict[bytes, int] = {}
        self._elsewhere: list[Callable[[Buffer], Array | None]] = []
        self._lock = threading.Lock()
        self.nbytes = 0
        """Length of the file."""

    def put(self, array: Array) -> Buffer:
        """Write `array` unless an equal one is already there."""
        key = digest(array)
        with self._lock:
            if key not in self._offsets:
                flat, offset = _bytes(array), -(-self.nbytes // _ALIGNED) * _ALIGNED
                self._file.seek(offset)
                self._file.write(flat.data)
                self._file.flush()
                self._offsets[key], self.nbytes = offset, offset + flat.nbytes
        return Buffer(key, np.shape(array), array.dtype)

    def adopt(self, read: Callable[[Buffer], Array | None]) -> None:
        """Take arrays that lie elsewhere: `read` gives a copy of one, `None` if it is not there."""
        self._elsewhere.append(read)

    def get(self, buffer: Buffer) -> Array:
        """Read a stored array; the caller may write to it, which does not change the record."""
        offset = self._offsets.get(buffer.digest)
        if offset is None:
            for read in self._elsewhere:
                if (found := read(buffer)) is not None:
                    return found
            name = f"{buffer.digest.hex()}.safetensors"
            raise InputError(f"{name}: its array was there before; leave a trace as it is, in use")
        with self._lock:  # both ways move the position in the file
            if buffer.nbytes >= MAPPED:
                # no room for another mapping (each holds a file descriptor): a copy, below
                with suppress(OSError, ValueError):
                    mapped = np.memmap(self._file, buffer.dtype, "c", offset, buffer.shape)
                    return np.asarray(mapped)
            out = np.empty(buffer.size, buffer.dtype)
            self._file.seek(offset)
            self._file.readinto(out.view(np.uint8).data)
        return out.reshape(buffer.shape)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def digest(array: Array) -> bytes:
    """Equal for arrays of equal dtype and bytes; shapes do not count."""
    # 128 bits, not meant to withstand an adversary: who can change a trace can change its digests
    total = xxhash.xxh3_128(_bytes(array).data)
    total.update(f"{array.dtype.str} {array.dtype.name}".encode())
    return total.digest()


def _bytes(array: Array) -> Shaped[np.ndarray, " n"]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
