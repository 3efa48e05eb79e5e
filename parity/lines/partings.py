"""All partings of two programs: after the first the reference's value is put in, and on."""

import itertools
from collections.abc import Callable, Iterator, Sequence
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
    for first, second in _cuts(ref, port, own, other, wrong):
        array = _in_place(ref.values[first].array, port.values[second].array)
        if array is None:
            continue
        if not _holds(array, port.values[second].array, values.limit(first)):
            continue
        healed = put(port, second, array)
        after = Values(ref, healed, values.factor)
        later = [n for n in other.wrong if n > second and after.of_port(n) is not None]
        if later or not other.users(second):
            return healed
    return None


def _cuts(
    ref: Program, port: Program, own: Walk, other: Walk, wrong: Sequence[Pair]
) -> Iterator[tuple[int, int]]:
    """Wrong values of both sides that may be the same, from the partings on.

    A result is the other side's result.
    """
    results = {pair.port.value: pair.ref.value for pair in wrong}
    for first in own.wrong:
        size = ref.values[first].array.size
        for second in other.wrong:
            own_kind, its = (_kind(x.values[n].array) for x, n in ((ref, first), (port, second)))
            if (
                port.values[second].array.size == size > 1
                and own_kind == its
                and results.get(second, first) == first
            ):
                yield first, second


def _holds(array: Array, port: Array, limit: float) -> bool:
    """True if the port's type can hold the values: one of its own rounding would part again."""
    if _kind(array) != "f":
        return True
    finite = array[np.isfinite(array)].astype(np.float64)
    gap = finite - finite.astype(port.dtype).astype(np.float64)
    return not gap.size or float(np.sqrt(np.square(gap).mean())) <= limit


def _kind(array: Array) -> str:
    """What sort of numbers an array holds."""
    return {"b": "b", "i": "i", "u": "i", "c": "c"}.get(array.dtype.kind, "f")


def _in_place(ref: Array, port: Array) -> Array | None:
    """The reference's array as the port's lies, `None` if it is another altogether."""
    best: tuple[float, Array | None] = (ALIKE, None)
    for order in itertools.islice(orders(ref.shape, port.shape), 16):
        array = order.of(ref)
        like = _cosine(array, port)
        if like > best[0]:
            best = like, array
    return best[1]


def _cosine(one: Array, other: Array) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    x, y = one[both].astype(np.float64), other[both].astype(np.float64)
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float((x * y).sum()) / size if size else 0.0


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
