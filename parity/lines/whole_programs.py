"""A PyTorch module and a function of JAX, aligned as wholes: no modules, names or taps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from parity.core.exceptions import InputError
from parity.core.lines import Lines, SourceLine
from parity.lines import jax_operations, torch_operations
from parity.lines.frontier import Pair, Walk, walks
from parity.lines.lines import distinct
from parity.lines.operations import Program, Result
from parity.lines.partings import partings
from parity.lines.source import source_lines
from parity.lines.values import Values

FACTOR = 10.0
"""Units of rounding within which values are the same."""

State = Literal["agrees", "parts", "follows"]


@dataclass(frozen=True)
class Step:
    """A line that ran: all that it makes is right, the programs part there, or it follows from a
    parting.
    """

    line: SourceLine
    state: State


@dataclass(frozen=True)
class Alignment:
    """The lines of both sides in the order in which they first ran, and where they part."""

    port: tuple[Step, ...]
    reference: tuple[Step, ...]
    partings: tuple[Lines, ...]


def align(
    module: torch.nn.Module, function: Callable[..., Any], args: Sequence[Any], port: Sequence[Any]
) -> Alignment:
    """The lines of `module(*args)` beside those of `function(*port)`.

    Raises:
        InputError: they return another number of arrays.
    """
    weights = [*module.parameters(), *module.buffers()]
    ref, outputs = torch_operations.run(module, weights, args)
    other, returned = jax_operations.run(function, port)
    if len(outputs) != len(returned):
        counts = f"the port returns {len(returned)} arrays, the reference {len(outputs)}"
        raise InputError(f"lines: {counts}; return those that belong together, in one order")
    pairs = [Pair(Result(x), Result(y)) for x, y in zip(outputs, returned, strict=True)]

    def wrong(values: Values) -> list[Pair]:
        twins = ((pair, values.pair(pair.ref.value, pair.port.value)) for pair in pairs)
        return [pair for pair, twin in twins if twin is None or not twin.plain]

    found = tuple(one.lines for one in distinct(partings(ref, other, FACTOR, wrong)))
    values = Values(ref, other, FACTOR)
    own, its = walks(ref, other, values, wrong(values))
    return Alignment(
        _steps(other, its, (line for one in found for line in one.port)),
        _steps(ref, own, (line for one in found for line in one.reference)),
        found,
    )


def _steps(program: Program, walk: Walk, parting: Iterable[SourceLine]) -> tuple[Step, ...]:
    places = {line.place for line in parting}
    made = source_lines(((one.frames, one.name) for one in program.operations), None)
    later = {line.place for line in source_lines(((x.frames, x.name) for x in walk.region), None)}
    return tuple(
        Step(x, "parts" if x.place in places else "follows" if x.place in later else "agrees")
        for x in made
    )
