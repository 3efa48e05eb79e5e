"""Arrays of two matched leaves, read so that they can be subtracted, and arrays read late."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from jaxtyping import Shaped

from parity.core.calls import LeafMatch, Reading
from parity.core.store import Buffer, Store

Array = Shaped[np.ndarray, "..."]


def read(store: Store, ref: Buffer, reading: Reading | None) -> Array:
    """A reference array in the port's layout."""
    return as_read(store.get(ref), reading)


def as_read(array: Array, reading: Reading | None) -> Array:
    """A recorded array of the reference, or one like it, in the port's layout."""
    if reading is None:
        return array
    return np.ascontiguousarray(array.transpose(reading.axes)).reshape(reading.shape)


def comparable(leaf: LeafMatch) -> tuple[Buffer, Buffer] | None:
    """The buffers of both sides, if they can be subtracted."""
    if leaf.problem or not (leaf.ref.buffer and leaf.port and leaf.port.buffer):
        return None
    return leaf.ref.buffer, leaf.port.buffer


class LazyArrays(Mapping[str, Array]):
    """Arrays by name, each made by `read` when it is asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Array]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names
