"""Arrays in one file, and what is said of them in another that is written last.

An array is named by its digest and checked by it when it is first read: one that is not read costs
nothing, whatever the size of the file.
"""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from parity.core.store import MAPPED, digest
from parity.traces.shards import dtype_of

Array = Shaped[np.ndarray, "..."]

INDEX, ARRAYS = "index.json", "arrays"

_ALIGNED = 64


class TooLarge(Exception):
    """What is written would be larger than it may be."""


class Damaged(Exception):
    """A pack is not what was written; the message says in what."""


@dataclass(frozen=True)
class Place:
    """Where an array lies in the file, its form, and the digest of its values."""

    digest: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Its length."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def plain(self) -> list[Any]:
        """As JSON has it."""
        return [self.digest, self.offset, list(self.shape), self.dtype.name]

    @classmethod
    def read(cls, value: Any) -> "Place":
        """What `plain` made."""
        key, offset, shape, dtype = value
        return cls(str(key), int(offset), tuple(map(int, shape)), dtype_of(dtype))


class Writer:
    """Writes a pack into an empty folder: arrays as they come, each distinct one once.

    Several threads may use it.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self._limit = folder, limit
        self._file = (folder / ARRAYS).open("wb")
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()
        self.nbytes = 0

    def put(self, array: Array) -> Place:
        """Write an array.

        Raises:
            TooLarge: there is no room for it.
        """
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = digest(array).hex()
        with self._lock:
            offset = self._places.get(key)
            if offset is None:
                offset = -(-self.nbytes // _ALIGNED) * _ALIGNED
                if offset + array.nbytes > self._limit:
                    raise TooLarge
                self._file.seek(offset)
                self._file.write(array.reshape(-1).view(np.uint8).data)
                self._places[key], self.nbytes = offset, offset + array.nbytes
        return Place(key, offset, array.shape, array.dtype)

    def end(self, content: Mapping[str, Any]) -> str:
        """Write what is said of the arrays, which makes the pack whole; returns its signature."""
        self._file.truncate(self.nbytes)
        self._file.close()
        whole = {"nbytes": self.nbytes, **content}
        text = json.dumps(whole, allow_nan=False)
        signature = _sha256(text)
        (self.folder / INDEX).write_text(f"{signature}\n{text}", encoding="utf-8")
        return signature

    def give_up(self) -> None:
        """Close the file."""
        self._file.close()


class Pack:
    """A pack that is read. It may be deleted meanwhile: its file stays open.

    Raises:
        Damaged: it is not whole.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            whole = (folder / INDEX).read_text(encoding="utf-8")
            self.signature, _, text = whole.partition("\n")
            if self.signature != _sha256(text):
                raise Damaged(f"{folder / INDEX}: changed since it was written")
            self.content: Mapping[str, Any] = json.loads(text)
            self._file = (folder / ARRAYS).open("rb")
        except (OSError, ValueError) as error:
            raise Damaged(f"{folder}: cannot be read ({error})") from error
        found = os.fstat(self._file.fileno()).st_size
        if found != self.content["nbytes"]:
            self.close()
            raise Damaged(f"{folder / ARRAYS}: {found} bytes, not {self.content['nbytes']}")
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self.damage = ""

    def get(self, place: Place) -> Array:
        """The array; what the caller writes to it changes nothing here.

        Raises:
            Damaged: it is another one. `damage` says so from then on.
        """
        array = self._read(place)
        if place.digest not in self._checked:
            if digest(array).hex() != place.digest:
                self.damage = f"{self.folder / ARRAYS}: changed since it was written"
                raise Damaged(self.damage)
            self._checked.add(place.digest)
        return array

    def _read(self, place: Place) -> Array:
        if place.nbytes >= MAPPED:
            with self._lock:  # it moves the position in the file
                return np.asarray(
                    np.memmap(self._file, place.dtype, "c", place.offset, place.shape)
                )
        if not place.nbytes:
            return np.empty(place.shape, place.dtype)
        found = bytearray(os.pread(self._file.fileno(), place.nbytes, place.offset))
        if len(found) != place.nbytes:
            self.damage = f"{self.folder / ARRAYS}: truncated"
            raise Damaged(self.damage)
        return np.frombuffer(found, np.uint8).view(place.dtype).reshape(place.shape)

    def close(self) -> None:
        """Close the file; arrays that are mapped stay."""
        self._file.close()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
