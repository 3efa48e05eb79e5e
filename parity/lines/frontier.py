"""The operations at which two programs part: walking back from a wrong result on both sides."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from parity.lines.operations import Operation, Program, Result
from parity.lines.source import Frames
from parity.lines.values import Likeness, Twin, Values

Found = tuple[Frames, str]
"""A place in the source and what is done there."""


@dataclass(frozen=True)
class Pair:
    """A result of the reference and the port's that should be the same."""

    ref: Result
    port: Result


@dataclass(frozen=True)
class Parting:
    """Where the programs part, on each side the likeliest first."""

    ref: tuple[Found, ...]
    port: tuple[Found, ...]


def parting(ref: Program, port: Program, values: Values, wrong: Sequence[Pair]) -> Parting:
    """Where the code that makes the wrong results parts."""
    return Parting(
        _side(ref, values.of_reference, [pair.ref for pair in wrong]),
        _side(port, values.of_port, [pair.port for pair in wrong]),
    )


def _side(
    program: Program, twin_of: Callable[[int], Twin | None], results: Iterable[Result]
) -> tuple[Found, ...]:
    walk = _Walk(program, twin_of)
    for result in results:
        walk.back(result)
    return tuple(walk.found())


class _Walk:
    """Goes from results back through values without counterpart."""

    def __init__(self, program: Program, twin_of: Callable[[int], Twin | None]) -> None:
        self._program, self._twin_of = program, twin_of
        self._region: dict[int, Operation] = {}
        self._frontier: dict[int, Operation] = {}
        self._doubted: dict[int, Likeness] = {}
        self._leaving: list[Found] = []
        self._places = {id(one): at for at, one in enumerate(program.operations)}

    def back(self, result: Result) -> None:
        """Walk back from a wrong result."""
        if self._stops(result.value):  # it is right as such: it should be another here
            if result.frames:
                self._leaving.append((result.frames, f"passed to {result.leads}"))
            elif (maker := self._program.maker(result.value)) is not None:
                self._leaving.append((maker.frames, maker.name))
            return
        open_ = [result.value]
        while open_:
            maker = self._program.maker(open_.pop())
            if maker is None or self._places[id(maker)] in self._region:
                continue
            self._region[self._places[id(maker)]] = maker
            left = [number for number in maker.inputs if not self._stops(number)]
            if not left:
                self._frontier[self._places[id(maker)]] = maker
            open_ += left

    def found(self) -> Iterable[Found]:
        """The places, the likeliest first."""
        yield from self._leaving
        exchanged = (Likeness.REORDERED, Likeness.EXCHANGED)
        for operation in (self._frontier[at] for at in sorted(self._frontier)):
            for number in operation.inputs:
                if self._doubted.get(number) in exchanged:
                    yield self._reordered(number)
            yield operation.frames, operation.name
        for operation in (self._frontier[at] for at in sorted(self._frontier)):
            for number in operation.inputs:
                maker = self._program.maker(number)
                if self._doubted.get(number) is Likeness.FEW and maker is not None:
                    yield maker.frames, maker.name
        for at in sorted(self._region):
            yield self._region[at].frames, self._region[at].name

    def _stops(self, number: int) -> bool:
        """True for a value that is known, or has a counterpart."""
        if self._program.values[number].known:
            return True
        twin = self._twin_of(number)
        if twin is not None and twin.likeness is not Likeness.SAME:
            self._doubted[number] = twin.likeness
        return twin is not None

    def _reordered(self, number: int) -> Found:
        """Where the order of a value's numbers came about."""
        wanted = self._doubted[number]
        while True:
            maker = self._program.maker(number)
            assert maker is not None
            same = []
            for at in maker.inputs:
                twin = self._twin_of(at)
                if twin is not None and twin.likeness is wanted:
                    same.append(at)
            if not same:
                return maker.frames, f"{maker.name}: reordered here"
            number = same[0]
