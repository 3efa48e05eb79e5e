"""Records of a run operation by operation: values, what made each, and where in the source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parity.core.arrays import Array
from parity.core.exceptions import InputError
from parity.lines.source import Frames

LARGEST = 1 << 32
"""Bytes that all values of one side of a call may take."""

Again = Callable[[Sequence[Array]], Sequence[Array]]
"""Makes an operation again on other inputs."""


@dataclass(eq=False)
class Value:
    """An array that a program was given or made, `made` by which operation, by its place.

    `rounding` is the root mean square by which a value of the reference may differ from the exact
    one: how far its own type is from float64. Nothing is asked of a value that is `known`: it was
    given, or is weights and constants whose entries were moved.
    """

    array: Array
    made: int | None = None
    rounding: float = 0.0
    known: bool = False
    weight: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation: its inputs and outputs are numbers of values."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frames: Frames
    again: Again | None = None
    moves: bool = False
    """True if it computes nothing: its outputs are entries of its inputs."""


@dataclass(frozen=True)
class Result:
    """A value that leaves the program: an output, or what it passes to a call that `frames` make.

    `leads` is the name of what it is passed to, `""` for an output.
    """

    value: int
    leads: str = ""
    frames: Frames = ()


@dataclass
class Program:
    """The operations of one run in their order, and its values by number."""

    values: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    size: int = 0
    """Bytes of the values that operations made."""

    def give(self, array: Array, *, weight: bool = False) -> int:
        """Number of a value that comes from outside."""
        self.values.append(Value(array, known=True, weight=weight))
        return len(self.values) - 1

    def make(
        self,
        name: str,
        inputs: Sequence[int],
        arrays: Sequence[Array],
        frames: Frames,
        *,
        moves: bool = False,
        again: Again | None = None,
        roundings: Sequence[float] = (),
    ) -> list[int]:
        """Numbers of the values that an operation makes; `moves` says that it computes nothing.

        Raises:
            InputError: all values together take too much memory.
        """
        self.size += sum(array.nbytes for array in arrays)
        if self.size > LARGEST:
            limit = f"more than {LARGEST >> 20} MiB"
            raise InputError(f"lines: the values of this call take {limit}; give it smaller inputs")
        given = [self.values[number] for number in inputs]
        weight = moves and bool(given) and all(value.weight for value in given)
        place, first = len(self.operations), len(self.values)
        for at, array in enumerate(arrays):
            known = weight or _uniform(array)
            rounding = roundings[at] if roundings else 0.0
            self.values.append(Value(array, place, rounding, known, weight))
        outputs = tuple(range(first, len(self.values)))
        self.operations.append(Operation(name, tuple(inputs), outputs, frames, again, moves))
        return list(outputs)

    def maker(self, number: int) -> Operation | None:
        """The operation that made a value."""
        made = self.values[number].made
        return None if made is None else self.operations[made]


def _uniform(array: Array) -> bool:
    """True for one number, repeated or not."""
    return array.size <= 1 or bool((array == array.flat[0]).all())
