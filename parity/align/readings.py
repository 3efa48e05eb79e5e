"""Ways to read an array of the reference in the layout of the port: by shape, then by value."""

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from parity.capture.layout import channel_last, channel_second
from parity.core.arrays import Array, as_read
from parity.core.calls import Call, Leaf, Reading
from parity.core.metrics import compare_arrays
from parity.core.store import Buffer, Store

Axes = tuple[int, ...]

NEAR = 1e-3
"""Relative distance of arrays that are the same number for number, computed on another way."""

SEVERAL = 8
"""Distinct numbers that two arrays do not have in common by chance."""


def readings(ref: Leaf, port: Leaf) -> tuple[Reading | None, ...]:
    """Readings that give the port's shape, that in which it was recorded first."""
    assert ref.buffer is not None
    assert port.buffer is not None
    return _readings(ref.buffer.shape, ref.moved, port.buffer.shape)


@cache
def _readings(
    ref: tuple[int, ...], moved: bool, port: tuple[int, ...]
) -> tuple[Reading | None, ...]:
    found: list[Reading | None] = [None] if ref == port else []
    if len(ref) > 2 and not (ref == port and max(ref[1:]) == 1):
        axes = channel_second(len(ref)) if moved else channel_last(len(ref))
        shape = tuple(ref[axis] for axis in axes)
        found += [Reading(axes, port)] if shape == port else []
    if not found and ref and _splits(ref, port):
        found.append(Reading(tuple(range(len(ref))), port))
    return tuple(found)


def _splits(ref: tuple[int, ...], port: tuple[int, ...]) -> bool:
    """True if the port has the last axis as several, or several as the last, or ones more."""
    one, other = ([n for n in shape if n != 1] for shape in (ref, port))
    few, many = sorted((one, other), key=len)
    if np.prod(few, dtype=int) != np.prod(many, dtype=int):
        return False
    return one == other or few[:-1] == many[: len(few) - 1]


def _heads(ref: Leaf, port: tuple[int, ...]) -> Iterator[Reading]:
    """The reading of (item, head, position, size) as (item, position, head, size)."""
    assert ref.buffer is not None
    axes = (0, 1, 3, 2) if ref.moved else (0, 2, 1, 3)
    if len(ref.buffer.shape) == 4 and tuple(ref.buffer.shape[axis] for axis in axes) == port:
        yield Reading(axes, port)


class Values:
    """Tells by the numbers which arrays belong together, and how they are to be read.

    With `heads`, positions may come before heads: inside of a model, and not at its door. The
    `orders` of axes are those in which the caller gave the port its arrays.
    """

    def __init__(
        self, store: Store | None, orders: Collection[Axes] = (), *, heads: bool = False
    ) -> None:
        self._store, self._orders, self._heads = store, orders, heads
        self.at_door = not heads
        self._near = cache(self._compared)

    def agree(self, ref: Leaf, port: Leaf) -> bool:
        """True if the port's array has the reference's numbers in some reading."""
        return any(True for _ in self.agreeing(ref, port))

    def agree_in(self, ref: Leaf, port: Leaf, reading: Reading | None) -> bool:
        """True if the port's array has the reference's numbers in this reading."""
        return bool(ref.buffer and port.buffer and self._near(ref.buffer, port.buffer, reading))

    def gap(self, ref: Leaf, port: Leaf) -> float:
        """Relative distance of two arrays in the reading in which it is least."""
        assert ref.buffer is not None
        assert port.buffer is not None
        if self._store is None:
            return float("inf")
        own, other = self._store.get(ref.buffer), self._store.get(port.buffer)
        gaps = [compare_arrays(as_read(own, x), other).rel_l2 for x in readings(ref, port)]
        return min((gap for gap in gaps if gap == gap), default=float("inf"))

    def choose(self, ref: Leaf, port: Leaf, fitting: Sequence[Reading | None]) -> Reading | None:
        """The reading in which the arrays agree; the first if there is none, or only that."""
        if len(fitting) == 1 and not [*self._as_heads(ref, port)]:
            return fitting[0]
        return next(self.agreeing(ref, port), fitting[0])

    def fitting(self, ref: Leaf, port: Leaf) -> Sequence[Reading | None]:
        """Readings that give the port's shape; if no usual one does, heads before positions."""
        usual, given = readings(ref, port), tuple(self._ordered(ref, port))
        found = (*given, *usual) if self.at_door else (*usual, *given)
        return found or tuple(self._as_heads(ref, port))

    def _ordered(self, ref: Leaf, port: Leaf) -> Iterator[Reading]:
        """Readings in an order of axes that the caller's arrays have."""
        assert ref.buffer is not None
        assert port.buffer is not None
        shape = ref.buffer.shape
        for order in self._orders:
            axes = _of_recorded(order, ref.moved)
            if len(axes) == len(shape) and port.buffer.shape == tuple(shape[i] for i in axes):
                yield Reading(axes, port.buffer.shape)

    def _as_heads(self, ref: Leaf, port: Leaf) -> Iterator[Reading]:
        assert port.buffer is not None
        return _heads(ref, port.buffer.shape) if self._heads else iter(())

    def agreeing(self, ref: Leaf, port: Leaf) -> Iterator[Reading | None]:
        """The readings in which the arrays have the same numbers."""
        if ref.buffer is None or port.buffer is None:
            return
        for reading in (
            *readings(ref, port),
            *self._ordered(ref, port),
            *self._as_heads(ref, port),
        ):
            if self._near(ref.buffer, port.buffer, reading):
                yield reading

    def _compared(self, ref: Buffer, port: Buffer, reading: Reading | None) -> bool:
        if reading is None and ref.digest == port.digest:
            return True
        if self._store is None or (ref.dtype.kind in "fcV") != (port.dtype.kind in "fcV"):
            return False
        one, other = as_read(self._store.get(ref), reading), self._store.get(port)
        if one.shape != other.shape:  # as in a run whose shapes are not those of the first
            return False
        if ref.dtype.kind not in "fcV":
            return bool(np.array_equal(one, other))
        return compare_arrays(one, other).rel_l2 <= NEAR and _several(one)


def _several(array: Array) -> bool:
    return len(np.unique(array.reshape(-1)[:4096])) >= min(SEVERAL, array.size)


def orders_given(ref: Call, port: Call, store: Store | None) -> Collection[Axes]:
    """Orders of PyTorch's axes in which a call of the port was given arrays of the reference, where
    no usual reading tells.
    """
    given = {leaf.name: leaf for leaf in port.inputs}
    values, found = Values(store), dict[Axes, None]()
    for leaf in ref.inputs:
        own = given.get(leaf.name)
        if own is None or leaf.buffer is None or own.buffer is None or values.agree(leaf, own):
            continue
        for order in permutations(range(len(leaf.buffer.shape))):
            if Values(store, (order,)).agree(leaf, own):
                found[order] = None
                break
    return tuple(found)


def _recorded(rank: int, moved: bool) -> Axes:
    """The order of PyTorch's axes in which an array is recorded."""
    return channel_last(rank) if moved else tuple(range(rank))


def _of_recorded(order: Axes, moved: bool) -> Axes:
    """The axes of a recorded array that are PyTorch's axes in this order."""
    recorded = _recorded(len(order), moved)
    return tuple(recorded.index(axis) for axis in order)


def order_of(ref: Leaf, reading: Reading | None) -> Axes | None:
    """The order of PyTorch's axes in which the port's array lies; `None` if some are split."""
    if ref.buffer is None:
        return None
    recorded = _recorded(len(ref.buffer.shape), ref.moved)
    if reading is None:
        return recorded
    return tuple(recorded[axis] for axis in reading.axes) if _whole(ref, reading) else None


def _whole(ref: Leaf, reading: Reading) -> bool:
    """True if no axis is split or joined."""
    assert ref.buffer is not None
    return tuple(ref.buffer.shape[axis] for axis in reading.axes) == reading.shape


def in_order(ref: Leaf, port: Leaf, order: Axes) -> tuple[Reading | None, ...]:
    """The reading in which the port's array lies in this order of axes, if it has that shape."""
    assert ref.buffer is not None
    assert port.buffer is not None
    if len(order) != len(ref.buffer.shape):
        return ()
    reading = Reading(_of_recorded(order, ref.moved), port.buffer.shape)
    if not _whole(ref, reading):
        return ()
    return (None if reading.axes == (*range(len(order)),) else reading,)


def returns_same(ref: Call, port: Call, values: Values) -> bool:
    """True if an array that one call returns has the numbers of one of the other's."""
    return any(values.agree(one, other) for one in ref.outputs for other in port.outputs)


class Returned:
    """The first call of each module of both sides, to see which return the same."""

    def __init__(self, ref: Sequence[Call], port: Sequence[Call], values: Values) -> None:
        self._ref, self._port = ({c.path: c for c in reversed(side)} for side in (ref, port))
        self._values = values

    def called(self, path: str) -> bool:
        """True if the reference calls the module."""
        return path in self._ref

    def steps(self, paths: Sequence[str], port: bool) -> list[list[str]]:
        """The modules of one side that are called, those together that return the very same."""
        calls, found = self._port if port else self._ref, dict[Any, list[str]]()
        for path in paths:
            if path in calls:
                outputs = tuple(leaf.buffer for leaf in calls[path].outputs)
                found.setdefault(outputs, []).append(path)
        return [*found.values()]

    def same(self, path: str, name: str) -> bool:
        """True if a module of the reference and one of the port return the same."""
        ref, port = self._ref.get(path), self._port.get(name)
        return bool(ref and port and returns_same(ref, port, self._values))
