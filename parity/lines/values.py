"""Values of two programs that are the same: the same numbers, however the axes lie."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parity.core.arrays import Array
from parity.lines.axes import Order, Positions, Shape, orders
from parity.lines.operations import Program

ENDLESS = 1e8
"""Numbers of this size count as infinite: masks are made with many."""

FEW = 16
"""A value with no more distinct numbers than this, each at several places, may be the same by
chance."""

TRIED = 64
"""How many orders of axes are tried where no value says which it is."""

SAMPLED = 512
"""How many of the largest values tell where they are."""

FACTOR_MATTERS = 1e-3
"""A factor is told from 1 from here on: below, two values may just be near to each other."""

ROUNDOFF = 2.0**-22
"""Part of its size that a value may be off at least: four roundings of float32."""


class Likeness(IntEnum):
    """How a value is that of the other program, the best first."""

    SAME = 0
    """The same numbers in an order of axes."""
    FEW = 1
    """So, but with few distinct numbers: that may be by chance."""
    EXCHANGED = 2
    """So, but axes of one length are exchanged where the shapes do not ask for it."""
    REORDERED = 3
    """The same numbers in an order that no order of axes makes."""


@dataclass(frozen=True)
class Twin:
    """The value of the other program that is this one, by its number.

    `factor` is the port's value divided by the reference's, 1 unless they are the same only so.
    """

    number: int
    likeness: Likeness
    factor: float = 1.0

    @property
    def plain(self) -> bool:
        """True if nothing is odd about it."""
        return self.in_order and self.factor == 1.0

    @property
    def in_order(self) -> bool:
        """True if an order of axes that is not odd makes the numbers lie so."""
        return self.likeness in (Likeness.SAME, Likeness.FEW)

    @property
    def rank(self) -> tuple[bool, Likeness]:
        """The less, the better."""
        return self.factor != 1.0, self.likeness


class Values:
    """Finds for the values of one program those of the other.

    Two values are the same if their distance is within `factor` times the rounding of the
    reference's.
    """

    def __init__(self, ref: Program, port: Program, factor: float) -> None:
        self.ref, self._port = ref, port
        self.factor = factor
        self._figures: dict[tuple[bool, int], _Figures] = {}
        self._pairs: dict[tuple[int, int], Twin | None] = {}
        self._sizes = {True: _by_size(ref), False: _by_size(port)}
        self._columns: dict[tuple[bool, int], _Column] = {}
        self._alike: dict[tuple[bool, int], list[int]] = {}

    def of_port(self, number: int) -> Twin | None:
        """The reference's value that one of the port's is."""
        return self._free(_best(self._refs(number)), self._refs(number), self._ports)

    def of_reference(self, number: int) -> Twin | None:
        """The port's value that one of the reference's is."""
        return self._free(_best(self._ports(number)), self._ports(number), self._refs)

    def all_of_port(self, number: int) -> list[Twin]:
        """All of the reference's values that one of the port's is."""
        return list(filter(None, self._refs(number)))

    def all_of_reference(self, number: int) -> list[Twin]:
        """All of the port's values that one of the reference's is."""
        return list(filter(None, self._ports(number)))

    def _refs(self, number: int) -> Iterator[Twin | None]:
        return (self._pair(ref, number, ref) for ref in self._candidates(False, number))

    def _ports(self, number: int) -> Iterator[Twin | None]:
        return (self._pair(number, port, port) for port in self._candidates(True, number))

    def _candidates(self, ref: bool, number: int) -> list[int]:
        """Values of the other program that may be this one, or a multiple of it, by mean and size.

        All are looked at together: a long function has thousands of one size.
        """
        if (ref, number) not in self._alike:
            own = self._of(ref, number)
            # figures of a complex value have twice its size
            program = self.ref if ref else self._port
            others = self._column(not ref, program.values[number].array.size)
            limit = self.limit(number) if ref else others.limit
            one, other = (own, others) if ref else (others, own)
            may_be = _near(one, other, limit) | _multiple(one, other, limit)
            self._alike[ref, number] = others.number[may_be].tolist()
        return self._alike[ref, number]

    def _column(self, ref: bool, size: int) -> "_Column":
        if (ref, size) not in self._columns:
            numbers = self._sizes[ref][size]
            figures = [self._of(ref, number) for number in numbers]
            self._columns[ref, size] = _Column(
                np.array(numbers, int),
                np.array([one.infinite for one in figures], int),
                np.array([one.mean for one in figures], float),
                np.array([one.size for one in figures], float),
                np.array([self.limit(number) for number in numbers] if ref else 0.0),
            )
        return self._columns[ref, size]

    @staticmethod
    def _free(
        best: Twin | None,
        found: Iterator[Twin | None],
        back: Callable[[int], Iterator[Twin | None]],
    ) -> Twin | None:
        """The best; of several multiples one that no other value equals without a factor."""
        if best is None or best.factor == 1.0:
            return best
        free = (x for x in found if x and not any(y and y.plain for y in back(x.number)))
        return _best(free) or best

    def pair(self, ref: int, port: int) -> Twin | None:
        """The port's value as the twin of the reference's, if it is that."""
        if self.ref.values[ref].array.size != self._port.values[port].array.size:
            return None
        return self._pair(ref, port, port)

    def few(self, port: bool, number: int) -> bool:
        """True if a value has few distinct numbers."""
        return self._of(not port, number).few

    def equal(self, ref: int, port: int, layout: Callable[[Array], Array]) -> bool:
        """True if the reference's value, put into the port's layout, is the port's as it lies."""
        own, other = self._of(True, ref), self._of(False, port)
        wanted = layout(self.ref.values[ref].array)
        return _gap(_real(wanted), other.array) <= self._limit(own, ref)

    def _of(self, ref: bool, number: int) -> "_Figures":
        if (ref, number) not in self._figures:
            program = self.ref if ref else self._port
            self._figures[ref, number] = _Figures(program.values[number].array)
        return self._figures[ref, number]

    def limit(self, ref: int) -> float:
        """The distance within which a value is that of the reference."""
        return self._limit(self._of(True, ref), ref)

    def _limit(self, own: "_Figures", ref: int) -> float:
        return self.factor * max(self.ref.values[ref].rounding, ROUNDOFF * own.size)

    def _pair(self, ref: int, port: int, other: int) -> Twin | None:
        if (ref, port) not in self._pairs:
            own, its = self._of(True, ref), self._of(False, port)
            limit = self._limit(own, ref)
            found = _twin(own, its, limit) if _near(own, its, limit) else None
            self._pairs[ref, port] = found or _scaled(own, its, limit)
        twin = self._pairs[ref, port]
        return twin and replace(twin, number=other)


def _by_size(program: Program) -> dict[int, list[int]]:
    sizes: dict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(program.values):
        sizes[value.array.size].append(number)
    return sizes


def _best(found: Iterator[Twin | None]) -> Twin | None:
    best: Twin | None = None
    for twin in found:
        if twin is not None and (best is None or twin.rank < best.rank):
            best = twin
            if best.rank == (False, Likeness.SAME):
                break
    return best


class _Column(NamedTuple):
    """Figures of all values of one size that a program has; the limits are the reference's."""

    number: Array
    infinite: Array
    mean: Array
    size: Array
    limit: Array


class _Figures:
    """An array and what is the same in whatever order its numbers are."""

    def __init__(self, array: Array) -> None:
        self.array = _real(array)
        finite = self.array[np.isfinite(self.array)] if self.array.size else self.array
        self.infinite = self.array.size - finite.size
        wide = finite.astype(np.float64, copy=False)
        self.mean = float(wide.mean()) if wide.size else 0.0
        self.size = float(np.sqrt(np.square(wide).mean())) if wide.size else 0.0
        """Root mean square."""

    @cached_property
    def few(self) -> bool:
        """True if there are few distinct numbers."""
        sample = self.array.reshape(-1)[:: max(1, self.array.size // 4096)]
        return np.unique(sample).size <= max(2, min(FEW, sample.size // 4))

    @cached_property
    def sorted(self) -> Array:
        """The numbers by size."""
        return np.sort(self.array, axis=None)

    @cached_property
    def largest(self) -> tuple[Array, Array]:
        """The numbers that are farthest from zero, by size, and their positions."""
        flat = self.array.reshape(-1)
        finite = np.flatnonzero(np.isfinite(flat))
        count = min(SAMPLED, finite.size)
        at = finite
        if finite.size > count:
            at = finite[np.argpartition(-np.abs(flat[finite]), count - 1)[:count]]
        at = at[np.argsort(flat[at], kind="stable")]
        return flat[at], at


def _real(array: Array) -> Array:
    """The array as real numbers, a further axis for the parts of complex ones."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    if array.dtype != np.float64:
        array = array.astype(np.float64)
    if array.size and float(np.abs(array).max()) >= ENDLESS:
        array = np.where(np.abs(array) >= ENDLESS, np.copysign(np.inf, array), array)
    return array


def _gap(ref: Array, port: Array) -> float:
    """Root mean square of the distance; infinite if one is infinite where the other is not."""
    if ref.shape != port.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        gap = np.where(ref == port, 0.0, np.abs(ref - port))
    both = np.isnan(ref) & np.isnan(port)
    total = float(np.sqrt(np.square(np.where(both, 0.0, gap)).mean())) if gap.size else 0.0
    return total if np.isfinite(total) else float("inf")


def _twin(ref: _Figures, port: _Figures, limit: float) -> Twin | None:
    """How the port's value is the reference's, if it is."""
    for given, wanted in ((ref, port), (port, ref)):
        shapes = given.array.shape, wanted.array.shape
        positions = _positions(given, wanted, 2 * limit)
        for order in itertools.islice(orders(*shapes, positions), TRIED):
            if _gap(order.of(given.array), wanted.array) <= limit:
                if ref.few:
                    return Twin(-1, Likeness.FEW)
                likeness = Likeness.SAME if usual(order, shapes[0]) else Likeness.EXCHANGED
                return Twin(-1, likeness)
    if ref.few or _gap(ref.sorted, port.sorted) > limit:
        return None
    return Twin(-1, Likeness.REORDERED)


def _near(ref: Any, port: Any, limit: Any) -> Any:
    """True if both may be the same: a distance is at least that of means and of sizes.

    Both may be single values or columns of them, here and in `_multiple`.
    """
    return (
        (ref.infinite == port.infinite)
        & (abs(ref.mean - port.mean) <= limit)
        & (abs(ref.size - port.size) <= limit)
    )


def _multiple(ref: Any, port: Any, limit: Any) -> Any:
    """True if the port's value may be the reference's times a number that is not 1."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.divide(port.size, ref.size)
        off = abs(factor * ref.mean - port.mean)
        finite = (ref.infinite == 0) & (port.infinite == 0)
        some = (ref.size > 0) & (port.size > 0)
        return finite & some & (off <= factor * limit) & (abs(factor - 1) >= FACTOR_MATTERS)


def _scaled(ref: _Figures, port: _Figures, limit: float) -> Twin | None:
    """The twin if the port's value is the reference's times a number."""
    if not _multiple(ref, port, limit) or ref.few:
        return None
    factor = port.size / ref.size
    twin = _twin(_Figures(ref.array * factor), port, factor * limit)
    return twin and replace(twin, factor=factor)


def usual(order: Order, given: Shape) -> bool:
    """True if the channels moved, as those of images do, or no other order moves less."""
    moved, rank = order.moved, len(order.moved)
    if rank == len(given) >= 4 and moved in (
        (0, *range(2, rank), 1),
        (0, rank - 1, *range(1, rank - 1)),
    ):
        return True
    others = itertools.islice(orders(given, order.shape), TRIED)
    return all(x.moves >= order.moves for x in others if len(x.split) <= len(order.split))


def _positions(ref: _Figures, port: _Figures, limit: float) -> Positions:
    """Where the largest values are in both arrays: those that no other is near to, up to ties."""
    groups = [_groups(*figures.largest, limit) for figures in (ref, port)]
    by_count: dict[int, tuple[list[Array], list[Array]]] = defaultdict(lambda: ([], []))
    own, other = (list(group) for group in groups)
    at = 0
    for value, places in own:
        while at < len(other) and other[at][0] < value - limit:
            at += 1
        if at < len(other) and other[at][0] <= value + limit:
            if len(other[at][1]) == len(places) <= 8:
                mine, theirs = by_count[len(places)]
                mine.append(places)
                theirs.append(other[at][1])
            at += 1
    return [(np.array(mine), np.array(theirs)) for mine, theirs in by_count.values()]


def _groups(values: Array, places: Array, limit: float) -> list[tuple[float, Array]]:
    """Values that are near to each other together, without those that were cut off."""
    if not values.size:
        return []
    cuts = np.flatnonzero(np.diff(values) > limit) + 1
    groups = zip(np.split(values, cuts), np.split(places, cuts), strict=True)
    smallest = float(np.abs(values).min()) if values.size == SAMPLED else -1.0
    return [
        (float(group[0]), where)
        for group, where in groups
        if np.abs(group).min() > smallest + limit
    ]
