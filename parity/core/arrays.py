"""The arrays of two matched leaves, read so that they can be subtracted."""

import numpy as np
from jaxtyping import Shaped

from parity.core.calls import LeafMatch
from parity.core.store import Buffer, Store

Array = Shaped[np.ndarray, "..."]


def read(store: Store, ref: Buffer, undo: bool) -> Array:
    """A reference array in the port's layout; `undo` takes back the move of its channel axis."""
    return moved_back(store.get(ref), undo)


def moved_back(array: Array, undo: bool) -> Array:
    """The array with its last axis on 1 if the move is to be undone."""
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if undo else array


def comparable(leaf: LeafMatch) -> tuple[Buffer, Buffer] | None:
    """The buffers of both sides, if they can be subtracted."""
    if leaf.problem or not (leaf.ref.buffer and leaf.port and leaf.port.buffer):
        return None
    return leaf.ref.buffer, leaf.port.buffer
