"""How the arrays of two runs are seen that are compared as they are: whole, or some entries."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from parity.traces.index import Sketch
from parity.traces.sample import Figures, figures, kept, places
from parity.traces.shards import Array, Reader
from parity.core.arrays import comparable, read
from parity.core.metrics import ratio
from parity.core.calls import LeafMatch, Match
from parity.core.measurements import Metrics
from parity.core.store import Buffer, Store, digest


class Least(NamedTuple):
    """What two arrays differ by at least: relative L2, maximum, entries finite in one only."""

    rel_l2: float = 0.0
    max_abs: float = 0.0
    nonfinite: int = 0


class View:
    """Arrays as they are.

    `whole` says that they are seen so.
    """

    whole = True

    def __init__(self, store: Store) -> None:
        self.store = store

    def match(self, match: Match) -> Match:
        """The match with what is seen of its arrays."""
        return match

    def wide(self, array: Array) -> Array:
        """What is seen of a float64 array."""
        return array

    def same(self, leaf: LeafMatch) -> bool:
        """Whether all numbers of two arrays are equal: PyTorch's have 64 bits where JAX has 32."""
        buffers = comparable(leaf)
        if buffers is None:
            return False
        return np.array_equal(read(self.store, buffers[0], leaf.undo), self.store.get(buffers[1]))

    def least(self, leaf: LeafMatch) -> Least:
        """What the arrays of a match differ by besides, where not all is seen."""
        return Least()

    def indexed(self, metrics: Metrics, leaf: LeafMatch) -> Metrics:
        """The metrics with the index of the worst entry in the whole array."""
        return metrics


@dataclass(frozen=True)
class Side:
    """The run of one case: the sketches of its arrays, if it was recorded so."""

    sketches: Mapping[str, Sketch]
    reader: Reader


class Sampled(View):
    """The entries that a trace of statistics keeps, of two runs of which one is such a trace.

    `ref` and `port` are `None` for a run whose arrays are all in the store.
    """

    whole = False

    def __init__(self, store: Store, ref: Side | None, port: Side | None) -> None:
        super().__init__(store)
        self._sides = (ref, port)
        self._figures: dict[bytes, Figures] = {}

    def match(self, match: Match) -> Match:
        """With arrays of the entries that are kept."""
        inputs = tuple(map(self._leaf, match.inputs))
        return replace(match, inputs=inputs, outputs=tuple(map(self._leaf, match.outputs)))

    def wide(self, array: Array) -> Array:
        """What is kept of it, unless it is that already."""
        return kept(array)

    def same(self, leaf: LeafMatch) -> bool:
        """By the digest of one in the other's type, which tells of all entries."""
        buffers = comparable(leaf)
        if buffers is None:
            return False
        ref, port = (self._whole(side, buffer)
                     for side, buffer in zip(self._sides, buffers, strict=True))  # fmt: skip
        if port is not None and leaf.undo:
            port = np.moveaxis(port, 1, -1)
        if ref is not None and port is not None:
            return np.array_equal(ref, port)
        array, buffer = (ref, buffers[1]) if port is None else (port, buffers[0])
        return array is not None and _digest_as(array, buffer.dtype) == buffer.digest

    def least(self, leaf: LeafMatch) -> Least:
        """By the figures of all entries: |rms(a) - rms(b)| <= rms(a - b), and so on."""
        buffers = comparable(leaf)
        if buffers is None or buffers[0].dtype.kind not in "fcV":
            return Least()
        ref, port = (self._of_all(side, buffer)
                     for side, buffer in zip(self._sides, buffers, strict=True))  # fmt: skip
        if ref.nonfinite != port.nonfinite:
            return Least(nonfinite=abs(ref.nonfinite - port.nonfinite))
        if math.isnan(ref.mean) or math.isnan(port.mean):
            return Least()
        gap = max(abs(ref.rms - port.rms), abs(ref.mean - port.mean))
        most = max(abs(ref.least - port.least), abs(ref.most - port.most), gap)
        return Least(ratio(gap, ref.rms), most)

    def indexed(self, metrics: Metrics, leaf: LeafMatch) -> Metrics:
        """By the place of that entry."""
        if not metrics.worst_index or leaf.ref.buffer is None:
            return metrics
        place = places(leaf.ref.buffer.size)[metrics.worst_index[0]]
        index = np.unravel_index(place, leaf.ref.buffer.shape)
        return replace(metrics, worst_index=tuple(map(int, index)))

    def _leaf(self, leaf: LeafMatch) -> LeafMatch:
        buffers = comparable(leaf)
        if buffers is None or leaf.port is None:
            return leaf
        # kept are entries of the array as it was recorded: it is the port's that is turned
        ref = self._kept(self._sides[0], buffers[0])
        port = self._kept(self._sides[1], buffers[1], turn=leaf.undo)
        return replace(
            leaf,
            ref=replace(leaf.ref, buffer=ref),
            port=replace(leaf.port, buffer=port),
            undo=False,
        )

    def _kept(self, side: Side | None, buffer: Buffer, turn: bool = False) -> Buffer:
        sketch = None if side is None else side.sketches.get(buffer.digest.hex())
        if side is not None and sketch is not None:
            return self.store.put(side.reader.read(sketch.kept), copy=False)
        array = self.store.get(buffer)
        return self.store.put(kept(np.moveaxis(array, 1, -1) if turn else array), copy=False)

    def _whole(self, side: Side | None, buffer: Buffer) -> Array | None:
        """The array, unless only some of its entries are known."""
        sketched = side is not None and buffer.digest.hex() in side.sketches
        return None if sketched else self.store.get(buffer)

    def _of_all(self, side: Side | None, buffer: Buffer) -> Figures:
        sketch = None if side is None else side.sketches.get(buffer.digest.hex())
        if sketch is not None:
            return sketch.figures
        if buffer.digest not in self._figures:
            self._figures[buffer.digest] = figures(self.store.get(buffer))
        return self._figures[buffer.digest]


def _digest_as(array: Array, dtype: np.dtype[Any]) -> bytes:
    """The digest that an array has in another type, `b""` if that cannot hold it."""
    other = array.astype(dtype)
    return digest(other) if np.array_equal(other, array) else b""
