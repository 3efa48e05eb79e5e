"""All partings of two programs: after the first the reference's value is put in, and on."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from parity.core.arrays import Array
from parity.lines.axes import orders
from parity.lines.frontier import Pair, Parting, Walk, parting
from parity.lines.operations import Program
from parity.lines.values import Values

ROUNDS = 6
"""How many times a value is put in."""

ALIKE = 0.5
"""Cosine from which a wrong value may stand where the reference's does."""

ORDERS = 16
"""How many orders of axes are tried for it."""

Wrong = Callable[[Values], Sequence[Pair]]
"""The results that are wrong."""


def partings(ref: Program, port: Program, factor: float, wrong_of: Wrong) -> list[Parting]:
    """The partings in their order, each with the reference's values put in at those before it.

    A further one counts only if that made values right that were not.
    """
    found: list[Parting] = []
    values = Values(ref, port, factor)
    wrong = list(wrong_of(values))
    while wrong and len(found) < ROUNDS:
        found.append(parting(ref, port, values, wrong))
        healed = _healed(ref, port, values, wrong)
        if healed is None:
            break
        port = healed
        values = Values(ref, port, factor)
        wrong = list(wrong_of(values))
    return found


def _healed(ref: Program, port: Program, values: Values, wrong: Sequence[Pair]) -> Program | None:
    """The port with a value of the reference at the parting, if that makes something right."""
    own = Walk(ref, values.of_reference, [pair.ref for pair in wrong])
    other = Walk(port, values.of_port, [pair.port for pair in wrong])
    results = {pair.port.value: pair.ref.value for pair in wrong}
    for first in own.wrong:
        places = [n for n in other.wrong if results.get(n, first) == first]
        for second, array in _places(ref.values[first].array, port, places):
            if not _holds(array, port.values[second].array, values.limit(first)):
                continue
            healed = put(port, second, array)
            after = Values(ref, healed, values.factor)
            later = (n for n in other.wrong if n > second and after.of_port(n) is not None)
            if not other.users(second) or next(later, None) is not None:
                return healed
    return None


def _places(array: Array, port: Program, numbers: Sequence[int]) -> list[tuple[int, Array]]:
    """The port's values that an array of the reference may stand for, the nearest first, and the
    array as they lie.
    """
    found = []
    for number in numbers:
        own = port.values[number].array
        if own.size == array.size > 1 and _kind(own) == _kind(array):
            lying = (order.of(array) for order in orders(array.shape, own.shape))
            near = [(*_nearness(one, own), one) for one in itertools.islice(lying, ORDERS)]
            like = [(gap, number, one) for gap, cosine, one in near if cosine > ALIKE]
            found += sorted(like, key=lambda one: one[0])[:1]
    return [(number, one) for _, number, one in sorted(found, key=lambda one: one[:2])]


def _nearness(one: Array, other: Array) -> tuple[float, float]:
    """The distance in units of the size, and the cosine, of the entries that are finite."""
    both = np.isfinite(one) & np.isfinite(other)
    x, y = one[both].astype(np.float64), other[both].astype(np.float64)
    size, its = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    if not size or not its:
        return float("inf"), 0.0
    return float(np.linalg.norm(x - y)) / size, float((x * y).sum()) / (size * its)


def _holds(array: Array, port: Array, limit: float) -> bool:
    """True if the port's type can hold the values: one of its own rounding would part again."""
    if _kind(array) != "f":
        return True
    finite = array[np.isfinite(array)].astype(np.float64)
    gap = finite - finite.astype(port.dtype).astype(np.float64)
    return not gap.size or float(np.sqrt(np.square(gap).mean())) <= limit


def _kind(array: Array) -> str:
    """The sort of numbers that an array holds."""
    return {"b": "b", "i": "i", "u": "i", "c": "c"}.get(array.dtype.kind, "f")


def put(program: Program, number: int, array: Array) -> Program:
    """The program with another value there, and what follows from it."""
    values = list(program.values)
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
