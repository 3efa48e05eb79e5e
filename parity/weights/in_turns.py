"""Rows of several tensors that lie in one by turns, as queries, keys and values of each head do.

The rows are recognised by their numbers: so the periods of both sides are found, whatever the parts
are called and in what order they come.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import prod

import numpy as np
from jaxtyping import Shaped

from parity.core.metrics import BLOCK
from parity.core.tensors import Tensor, TensorPart

Prints = Shaped[np.ndarray, "..."]

ANCHORS = 8
"""How many turns are looked at for two that are right."""

ALL, MOST = 1 - 1e-9, 0.5
"""More than such a part of the rows is right."""

FEW = 4
"""Values of a tensor up to which its rows tell nothing: masks have the same row by chance."""

MIXED = np.uint64(0x9E3779B97F4A7C15)
"""An odd number that spreads the bits of a sum."""


@dataclass(frozen=True)
class Rows:
    """Axes of a tensor as one, with a number for each entry that tells what it holds."""

    tensor: Tensor
    before: tuple[int, ...]
    after: tuple[int, ...]
    prints: Prints

    @property
    def length(self) -> int:
        """How many rows there are."""
        return len(self.prints)

    def part(self, start: int, run: int, period: int) -> TensorPart:
        """A run of rows at the same place of every period."""
        span = (start, start + run, period) if period < self.length else (start, start + run)
        joined = len(self.before) + 1 + len(self.after) < len(self.tensor.shape)
        shape = (*self.before, self.length, *self.after) if joined else ()
        return TensorPart((*[None] * len(self.before), span), shape)

    def run(self, start: int, run: int, step: int, turns: int) -> Tensor | None:
        """What has this run of rows in every step; `None` if there is no such part."""
        if run * turns == self.length and run == step:
            return self.tensor
        if run == step:
            return self.tensor.cut(self.part(start, run * turns, self.length))
        if start + run > step or step * turns != self.length:
            return None
        return self.tensor.cut(self.part(start, run, step))


class Lines:
    """Tells which tensors have a row, by its values in any order."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = [*tensors]
        self._of_width = cache(self._table)

    def of(self, width: int, row: int, most: int) -> Sequence[tuple[Rows, int]]:
        """The places of a row of so many entries in tensors of at most some size."""
        return self._of_width(width, most).get(row, ())

    def _table(self, width: int, most: int) -> dict[int, list[tuple[Rows, int]]]:
        found: dict[int, list[tuple[Rows, int]]] = defaultdict(list)
        for tensor in (one for one in self._tensors if one.size <= most):
            for rows in rows_of(tensor, width):
                prints, first, times = np.unique(rows.prints, return_index=True, return_counts=True)
                once = times == 1  # a row that comes again does not say where it is
                for row, at in zip(prints[once].tolist(), first[once].tolist(), strict=True):
                    found[row].append((rows, at))
        return dict(found)


def rows_of(tensor: Tensor, width: int = 0) -> Iterator[Rows]:
    """The first axes of a tensor as one, and its last; only rows of that width if one is given."""
    shape = tensor.shape
    ends = range(1, len(shape))
    cuts = [((), shape[at:]) for at in ends] + [(shape[:at], ()) for at in ends]
    if width == 1 or len(shape) == 1:
        cuts = [((), ())]
    for before, after in cuts:
        own = prod(before) * prod(after)
        if own and (not width or own == width):
            yield Rows(tensor, before, after, _prints(tensor, prod(before), prod(after)))


@dataclass(frozen=True)
class _Run:
    """Rows at a place of every turn: of which tensor, what of it, and how many are right."""

    part: TensorPart
    tensor: Tensor
    of: Tensor
    length: int
    right: float


def in_turns(whole: Tensor, lines: Lines, right: float = MOST) -> list[tuple[TensorPart, Tensor]]:
    """Tensors, or parts of them, whose rows make up another in turns, each with its piece of it.

    More than this part of the rows has to be right: most of a piece says what it is.
    """
    if _few_values(whole):
        return []
    best: tuple[float, list[_Run]] = right, []
    for own in rows_of(whole):
        for period in _divisors(own.length):
            found = _with_period(own, period, lines)
            share = sum(one.right * one.length for one in found) / period
            if share > best[0]:
                best = share, found
    return [(one.part, one.tensor) for one in best[1]]


def _with_period(own: Rows, period: int, lines: Lines) -> list[_Run]:
    """Several runs that make up the period, and the tensors that they are of; or none."""
    found: list[_Run] = []
    place = 0
    while place < period:
        run = _at(own, period, place, lines)
        if run is None:
            return []
        found.append(run)
        place += run.length
    left = {id(one.of): one.of.size for one in found}
    for one in found:
        left[id(one.of)] -= one.tensor.size
    return [] if len(found) == 1 or any(left.values()) else found


def _at(own: Rows, period: int, place: int, lines: Lines) -> _Run | None:
    """The longest run of rows that one tensor has at a place of every turn, or most."""
    table, best = own.prints.reshape(-1, period), None
    turns = len(table)
    for turn, rows, at, step in _steps(own, table[:, place], lines):
        start = at - step * turn
        run = _agree(table[turn, place:], rows.prints[at : at + step])
        if start < 0 or start + step * (turns - 1) + run > rows.length:
            continue
        tensor = rows.run(start, run, step, turns)
        if tensor is not None and (best is None or run > best.length):
            index = start + step * np.arange(turns)[:, None] + np.arange(run)
            right = float((table[:, place : place + run] == rows.prints[index]).mean())
            if right > MOST:
                best = _Run(own.part(place, run, period), tensor, rows.tensor, run, right)
    return best


def _steps(own: Rows, column: Prints, lines: Lines) -> Iterator[tuple[int, Rows, int, int]]:
    """Turns in which a row is known, where it is, and how far it is to that of the next turn."""
    size = own.tensor.size
    known = [lines.of(size // own.length, row, size) for row in column[:ANCHORS].tolist()]
    for (turn, one), (later, other) in combinations(enumerate(known), 2):
        for rows, at in one:
            gaps = (second - at for owner, second in other if owner is rows)
            for gap in gaps:
                if gap > 0 and gap % (later - turn) == 0:
                    yield turn, rows, at, gap // (later - turn)


def _few_values(tensor: Tensor) -> bool:
    """True if the entries have few values, of which a row may have another's by chance."""
    left = tensor.read().reshape(-1)
    for _ in range(min(FEW, left.size // 2)):
        left = left[left != left[:1]]
        if not left.size:
            return True
    return False


def _agree(one: Prints, other: Prints) -> int:
    """How many rows from the first on are the same."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if differ.size else length


def _divisors(number: int) -> list[int]:
    return [one for one in range(2, number // 2 + 1) if number % one == 0]


def _prints(tensor: Tensor, before: int, after: int) -> Prints:
    """A number for each row, the same for the same values in any order."""
    values = np.ascontiguousarray(tensor.read()).reshape(before, -1, after)
    words = values.view(f"u{min(values.itemsize, 4)}")
    found = np.empty(values.shape[1], np.uint64)
    step = max(1, BLOCK // max(1, before * words.shape[2]))
    for at in range(0, len(found), step):
        block = words[:, at : at + step].astype(np.uint64)
        mixed = (block * block).sum((0, 2))
        found[at : at + step] = block.sum((0, 2)) * MIXED ^ mixed
    return found
