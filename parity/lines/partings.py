"""All partings of two programs: after the first the reference's value is put in, and on."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from parity.core.arrays import Array
from parity.lines.axes import Order, orders
from parity.lines.frontier import Pair, Parting, Walk, parting, walks
from parity.lines.operations import Program
from parity.lines.values import ENDLESS, Likeness, Twin, Values, usual

ROUNDS = 12
"""How many times a value is put in."""

CUTS = 100
"""How many values are tried in all."""

ALIKE = 0.5
"""Cosine from which a wrong value may stand where the reference's does."""

ORDERS = 16
"""How many orders of axes are tried for it."""

Wrong = Callable[[Values], Sequence[Pair]]
"""The results that are wrong."""


@dataclass(frozen=True)
class Mistake:
    """One of several: where the programs part, the port's `before` it was mended and `after`.

    `wrong` are the results that are so before, and `still` those after. Where no value could be put
    in `after` is `None`, and `wrong` is one result, in which it shows.
    """

    parting: Parting
    before: Program
    wrong: Sequence[Pair]
    after: Program | None
    values: Values
    still: Sequence[Pair]

    def mended(self, numbers: Iterable[int]) -> Iterator[tuple[int, Order, Array]]:
        """Values of the reference that the port has now and had not: the number, the order in which
        the reference's array lies as the port's, and what the port had.
        """
        for number in numbers if self.after is not None else ():
            twin = self.values.of_reference(number)
            if twin is None or not _right(twin):
                continue
            assert self.after is not None
            own, now, before = (
                self.values.ref.values[number].array,
                self.after.values[twin.number].array,
                self.before.values[twin.number].array,
            )
            tried = [] if now is before else list(islice(orders(own.shape, now.shape), ORDERS))
            if tried and own.dtype.kind == "f":
                order = min(tried, key=lambda one: _apart(one.of(own), now))
                yield number, order, before


def partings(ref: Program, port: Program, factor: float, wrong_of: Wrong) -> list[Mistake]:
    """The partings in their order, each with the reference's values put in at those before it.

    A further one counts only if that made values right that were not.
    """
    found: list[Mistake] = []
    values = Values(ref, port, factor)
    wrong, left, tries = list(wrong_of(values)), list[Pair](), iter(range(CUTS))
    while wrong and len(found) - len(left) < ROUNDS:
        healed = _healed(ref, port, values, wrong, tries)
        own = wrong[:1] if healed is None else wrong
        parted = parting(ref, port, values, own)
        if healed is None:  # one result after another: each may be wrong by itself
            left += own
        else:
            values = Values(ref, healed, factor)
        wrong = [pair for pair in wrong_of(values) if pair not in left]
        still = [pair for pair in (*wrong, *left) if healed is not None or pair not in own]
        found.append(Mistake(parted, port, own, healed, values, still))
        port = healed or port
    return found


def _healed(
    ref: Program, port: Program, values: Values, wrong: Sequence[Pair], tries: Iterator[int]
) -> Program | None:
    """The port with a value of the reference at the parting, if that makes something right."""
    own, other = walks(ref, port, values, wrong)
    results = {pair.port.value: pair.ref.value for pair in wrong}
    frontier = _made_at(own)
    cuts = _odd_cuts(ref, port, values, other), _cuts(ref, port, own, other)
    misused = [*_misused(ref, port, own, other)]
    for first, second, array in chain(cuts[0], misused, cuts[1]):
        fits = results.get(second, first) == first  # a result is the other side's result
        if fits and next(tries, None) is None:
            return None
        if fits and _holds(array, port.values[second].array, values.limit(first)):
            healed = put(port, second, array)
            after = Values(ref, healed, values.factor)
            least = first if (first, second) in {cut[:2] for cut in misused} else -1
            if _heals(other, (first, second), after, first in frontier, least):
                return healed
    return None


Cut = tuple[int, int, Array]
"""A value of the reference, one of the port that it may stand for, and the array as that lies."""


def _odd_cuts(ref: Program, port: Program, values: Values, walk: Walk) -> Iterator[Cut]:
    """Where a value became odd; counterparts that nothing else is come first."""
    for second, twins in walk.odd():
        for twin in sorted(twins, key=lambda one: _right(values.of_reference(one.number))):
            array = ref.values[twin.number].array * (1.0 if twin.in_order else twin.factor)
            lying = _places(array, port, [second], {second})
            yield from ((twin.number, *one) for one in lying)


def _misused(ref: Program, port: Program, own: Walk, other: Walk) -> Iterator[Cut]:
    """Values of the port that are right as such, but are used where the reference has made another
    of them, as without a residual or an activation; all that uses them is wrong.
    """
    given = dict.fromkeys(number for one in other.frontier for number in other.given(one))
    alone = [
        number
        for number in given
        if sum(number in one.inputs for one in port.operations) == len(other.users(number))
    ]
    for first in sorted(_made_at(own)):
        lying = _places(ref.values[first].array, port, alone, alone)
        yield from ((first, *one) for one in lying)


def _cuts(ref: Program, port: Program, own: Walk, other: Walk) -> Iterator[Cut]:
    """Wrong values of both sides, from the partings on."""
    frontier, its = _made_at(own), _made_at(other)
    for first in own.wrong:
        sure = its if first in frontier else set()
        lying = _places(ref.values[first].array, port, other.wrong, sure)
        yield from ((first, *one) for one in lying)


def _made_at(walk: Walk) -> set[int]:
    """The values that the frontier makes."""
    return {number for operation in walk.frontier for number in operation.outputs}


def _heals(walk: Walk, cut: tuple[int, int], after: Values, frontier: bool, least: int) -> bool:
    """True if all that uses a value alone is right now; at the frontier, if anything is.

    What is only a multiple of the value that was put in, or has its entries, is not, nor what the
    reference makes before its value `least`.
    """
    first, number = cut
    users = walk.users(number)
    alone = [x for x in users if all(n == number or walk.stops(n) for n in x.inputs)]
    twins = [[twin for n in x.outputs if _told(twin := after.of_port(n))] for x in alone]
    right = [
        any(twin and (twin.plain or twin.number != first) and twin.number > least for twin in own)
        for own in twins
    ]
    if not users or (right and all(right)):
        return True
    later = (after.of_port(n) for n in walk.wrong if n > number)
    return frontier and any(twin and _right(twin) and twin.number > least for twin in later)


def _told(twin: Twin | None) -> bool:
    """True for a counterpart that cannot be one by chance."""
    return twin is not None and twin.likeness is not Likeness.FEW


def _right(twin: Twin | None) -> bool:
    return twin is not None and twin.plain and _told(twin)


def _places(
    array: Array, port: Program, numbers: Sequence[int], sure: Collection[int]
) -> list[tuple[int, Array]]:
    """The port's values that an array of the reference may stand for, the nearest first, and the
    array as they lie; those that are `sure` need not be like it.
    """
    found = []
    for number in numbers:
        own = port.values[number].array
        if own.size != array.size or array.size == 1 or _kind(own) != _kind(array):
            continue
        tried = list(islice(orders(array.shape, own.shape), ORDERS))
        fewest = min((len(order.split) for order in tried), default=0)
        near = [
            (not usual(order, array.shape), *_nearness(order.of(array), own), order)
            for order in tried
            if len(order.split) == fewest
        ]
        like = [one for one in near if one[2] > ALIKE or number in sure]
        if like:
            _, gap, _, order = min(like, key=lambda one: one[:2])
            found.append((number not in sure, gap, number, order.of(array)))
    return [(number, lying) for _, _, number, lying in sorted(found, key=lambda one: one[:3])]


def _apart(one: Array, other: Array) -> tuple[int, float]:
    """How many entries are finite in one alone, as of a mask that lies otherwise, and how far the
    others are off.
    """
    alone = np.count_nonzero(_finite(one) != _finite(other))
    return int(alone), _nearness(one, other)[0]


def _finite(array: Array) -> Array:
    """Which entries are numbers, and not the huge ones of masks."""
    found: Array = np.abs(array) < ENDLESS
    return found


def _nearness(one: Array, other: Array) -> tuple[float, float]:
    """The distance in units of the size, and the cosine, of the entries that are finite."""
    both = _finite(one) & _finite(other)
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    x, y = one[both].astype(kind), other[both].astype(kind)
    size, its = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    if not size or not its:
        return float("inf"), 0.0
    return float(np.linalg.norm(x - y)) / size, float(np.vdot(x, y).real) / (size * its)


def _holds(array: Array, port: Array, limit: float) -> bool:
    """True if the port's type can hold the values: one of its own rounding would part again."""
    if _kind(array) != "f":
        return True
    finite = array[np.isfinite(array)].astype(np.float64)
    with np.errstate(over="ignore"):  # what it cannot hold is infinite
        gap = finite - finite.astype(port.dtype).astype(np.float64)
    return not gap.size or float(np.sqrt(np.square(gap).mean())) <= limit


def _kind(array: Array) -> str:
    """The sort of numbers that an array holds."""
    return {"b": "b", "i": "i", "u": "i", "c": "c"}.get(array.dtype.kind, "f")


def put(program: Program, number: int, array: Array) -> Program:
    """The program with another value there, and what follows from it."""
    values = list(program.values)
    with np.errstate(over="ignore"):
        values[number] = replace(values[number], array=array.astype(values[number].array.dtype))
    changed = {number}
    for operation in program.operations:
        if operation.again is None or changed.isdisjoint(operation.inputs):
            continue
        arrays = operation.again([values[x].array for x in operation.inputs])
        for output, made in zip(operation.outputs, arrays, strict=True):
            if output != number:
                values[output] = replace(values[output], array=made)
                changed.add(output)
    return Program(values, program.operations)
