"""Orders of axes: how those of one array are split, moved and merged into another's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from parity.core.arrays import Array

Shape = tuple[int, ...]

Positions = Sequence[tuple[Array, Array]]
"""Where the same few values are: of each group of equal ones the flat positions in both arrays,
groups of one size in one pair of arrays with a line for each group.
"""

ALIKE = 0.95
"""Share of the groups of equal values that have to be where an order puts them."""


@dataclass(frozen=True)
class Order:
    """An order of axes: an array is reshaped to `split`, transposed by `moved`, and reshaped.

    Axes of length 1 do not count.
    """

    split: Shape
    moved: tuple[int, ...]
    shape: Shape

    def of(self, array: Array) -> Array:
        """The array in this order."""
        return array.reshape(self.split).transpose(self.moved).reshape(self.shape)

    @property
    def moves(self) -> int:
        """How many pairs of axes are exchanged."""
        return sum(x > y for at, x in enumerate(self.moved) for y in self.moved[at + 1 :])


def orders(given: Shape, wanted: Shape, positions: Positions = ()) -> Iterator[Order]:
    """The orders in which an array of shape `given` is one of shape `wanted`.

    Axes may be moved, split and merged, but entries that are next to each other on an axis of
    `given` stay in order. Those that put no value of `positions` elsewhere. Of arrays without
    entries there are none.
    """
    if 0 in (*given, *wanted):
        return
    search = _Search(
        tuple(n for n in given if n != 1), tuple(n for n in wanted if n != 1), positions
    )
    for taken in search.found(0, (), search.given, search.wanted[:1]):
        yield search.order(taken, wanted)


_Taken = tuple[tuple[int, int], ...]
"""The axis and the length of each piece that was taken, from the first axis of the other on."""


class _Search:
    """Fills the axes of `wanted`, from the first on, with pieces of the axes of `given`."""

    def __init__(self, given: Shape, wanted: Shape, positions: Positions) -> None:
        self.given, self.wanted = given, wanted
        self._places = [
            (np.unravel_index(x, given or (1,)), np.unravel_index(y, wanted or (1,)))
            for x, y in positions
        ]

    def found(self, axis: int, taken: _Taken, left: Shape, open_: Shape) -> Iterator[_Taken]:
        """Pieces for the axes from `axis` on, of which `open_` is to be filled yet."""
        if axis == len(self.wanted):
            if prod(left) == 1:
                yield taken
            return
        (size,) = open_
        if size == 1:
            following = axis + 1
            yield from self.found(following, taken, left, self.wanted[following : following + 1])
            return
        for at, rest in enumerate(left):
            for piece in _pieces(rest, size):
                if self._fits(axis, at, piece, rest, size):
                    now = (*left[:at], rest // piece, *left[at + 1 :])
                    yield from self.found(axis, (*taken, (at, piece)), now, (size // piece,))

    def _fits(self, axis: int, at: int, piece: int, rest: int, size: int) -> bool:
        """True if the positions allow that a piece of `given` is the next one of `wanted`."""
        total = wrong = 0
        for own, other in self._places:
            mine = own[at] % rest // (rest // piece)
            theirs = other[axis] % size // (size // piece)
            alike = (np.sort(mine, axis=1) == np.sort(theirs, axis=1)).all(axis=1)
            total, wrong = total + alike.size, wrong + int((~alike).sum())
        return wrong <= (1 - ALIKE) * total

    def order(self, taken: _Taken, wanted: Shape) -> Order:
        """The order that the pieces make."""
        by_axis = sorted(range(len(taken)), key=lambda i: (taken[i][0], i))
        moved = tuple(by_axis.index(i) for i in range(len(taken)))
        return Order(tuple(taken[i][1] for i in by_axis), moved, wanted)


def _pieces(rest: int, size: int) -> list[int]:
    """The lengths that the next piece of an axis may have: all of either, or what they share."""
    if rest == 1:
        return []
    if size % rest == 0:
        return [rest]
    if rest % size == 0:
        return [size]
    shared = gcd(rest, size)
    return [shared] if shared > 1 else []
