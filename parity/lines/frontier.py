"""The operations at which two programs part: walking back from a wrong result on both sides."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from parity.lines.operations import Operation, Program, Result
from parity.lines.source import Frames
from parity.lines.values import Likeness, Twin, Values

Found = tuple[Frames, str]
"""A place in the source and what is done there."""

TwinOf = Callable[[int], Twin | None]
"""The value of the other program that one of this is."""

TwinsOf = Callable[[int], Sequence[Twin]]
"""All such values."""

HARMLESS = frozenset({"broadcast_in_dim", "expand", "bitwise_not", "logical_not", "not"})
"""Operations that say the same in other words: of a right value they make no wrong one."""


@dataclass(frozen=True)
class Pair:
    """A result of the reference and the port's that should be the same."""

    ref: Result
    port: Result


@dataclass(frozen=True)
class Parting:
    """Where the programs part, on each side the likeliest first.

    `near` are the places of the reference's operations that the port may do otherwise, `factors`
    the numbers of its values that the port has so many times as large, where that begins.
    """

    ref: tuple[Found, ...]
    port: tuple[Found, ...]
    near: frozenset[int]
    factors: tuple[tuple[int, float], ...]


def parting(ref: Program, port: Program, values: Values, wrong: Sequence[Pair]) -> Parting:
    """Where the code that makes the wrong results parts."""
    own, other = walks(ref, port, values, wrong)
    odd = [
        (pair.ref.value, pair.port.value)
        for pair in wrong
        if (twin := values.pair(pair.ref.value, pair.port.value)) is not None and not twin.plain
    ]
    for one, its in itertools.product(own.frontier, other.frontier):
        odd += _odd(own.given(one), other.given(its), values)
    first: list[Found] = []
    second: list[Found] = []
    for x, y in odd:
        first += own.origin(x, partial(_related, values, port=y))
        second += other.origin(y, partial(_related, values, x))
    return Parting(
        (*first, *own.found(partial(values.few, False))),
        (*second, *other.found(partial(values.few, True))),
        own.near(),
        tuple(_factors(own, values)),
    )


def _factors(own: "Walk", values: Values) -> Iterator[tuple[int, float]]:
    """How many times as large the port has what is odd."""
    for number, _ in own.odd():
        twin = values.of_reference(number)
        if twin is not None and twin.in_order and twin.factor != 1.0:
            yield number, twin.factor


def _related(values: Values, ref: int, port: int) -> list[Twin]:
    """The one value as the twin of the other, if it is that."""
    twin = values.pair(ref, port)
    return [] if twin is None else [twin]


def walks(
    ref: Program, port: Program, values: Values, wrong: Sequence[Pair]
) -> tuple["Walk", "Walk"]:
    """The walks back from the wrong results, in the reference and in the port."""
    given = {number for number, value in enumerate(port.values) if value.known}
    twins = [values.of_reference(pair.ref.value) for pair in wrong]
    put = {pair.ref.value for pair, x in zip(wrong, twins, strict=True) if x and x.number in given}
    return (
        Walk(ref, values.of_reference, values.all_of_reference, [pair.ref for pair in wrong], put),
        Walk(port, values.of_port, values.all_of_port, [pair.port for pair in wrong]),
    )


def _odd(ref: Sequence[int], port: Sequence[int], values: Values) -> Iterator[tuple[int, int]]:
    """Inputs of two operations that hold the same numbers in another order, if no others agree."""
    twins = {(x, y): twin for x in ref for y in port if (twin := values.pair(x, y)) is not None}
    plain = [pair for pair, twin in twins.items() if twin.plain]
    for (x, y), twin in twins.items():
        agrees = any(x == one or y == other for one, other in plain)
        if not agrees and twin.likeness in (Likeness.EXCHANGED, Likeness.REORDERED):
            yield x, y


class Walk:
    """Goes from wrong results back through values without counterpart, to the `frontier`.

    These are the operations whose inputs are all right and whose outputs are not. `put` are results
    that the other program was handed, as at a tap: it did not compute them itself.
    """

    def __init__(
        self,
        program: Program,
        twin_of: TwinOf,
        twins_of: TwinsOf,
        results: Sequence[Result],
        put: Collection[int] = (),
    ) -> None:
        self._program, self._twin_of, self._twins_of = program, twin_of, twins_of
        self._places = {id(one): at for at, one in enumerate(program.operations)}
        self._region: set[int] = set()
        self._stopping: dict[int, bool] = {}
        self._frontier: set[int] = set()
        self._leaving: list[Found] = []
        self._put = put
        self._results = [result.value for result in results]
        for result in results:
            self._back(result)

    @property
    def frontier(self) -> list[Operation]:
        """The operations in their order."""
        return [self._program.operations[at] for at in sorted(self._frontier)]

    @property
    def region(self) -> list[Operation]:
        """All operations on the way, in their order."""
        return [self._program.operations[at] for at in sorted(self._region)]

    def near(self) -> frozenset[int]:
        """Places of the operations on the way, and of what moved entries before these use them."""
        found = set(self._region)
        open_ = [*self._results, *(number for number, _ in self.odd())]
        open_ += [number for operation in self.region for number in operation.inputs]
        while open_:
            made = self._program.values[open_.pop()].made
            if made is not None and made not in found:
                found.add(made)
                if (maker := self._program.operations[made]).moves:
                    open_ += maker.inputs
        return frozenset(found)

    @property
    def wrong(self) -> list[int]:
        """The values without counterpart on the way, in their order."""
        return [number for operation in self.region for number in operation.outputs]

    def users(self, number: int) -> list[Operation]:
        """The operations on the way that use a value."""
        return [operation for operation in self.region if number in operation.inputs]

    def given(self, operation: Operation) -> list[int]:
        """The inputs of an operation that are no weights; what repeats a value stands for it."""
        found = []
        for number in operation.inputs:
            maker = self._program.maker(number)
            while maker is not None and self._repeats(maker) and self._twin(number) is None:
                number = maker.inputs[0]
                maker = self._program.maker(number)
            if not self._program.values[number].weight:
                found.append(number)
        return found

    @staticmethod
    def _repeats(operation: Operation) -> bool:
        return operation.name in HARMLESS and bool(operation.inputs)

    def _back(self, result: Result) -> None:
        if self.stops(result.value) and result.value not in self._put:
            # it is right as such: it should be another here
            self._leaving += self._left_as_it_is(result)
            return
        open_ = [result.value]
        while open_:
            maker = self._program.maker(open_.pop())
            if maker is None or self._places[id(maker)] in self._region:
                continue
            self._region.add(self._places[id(maker)])
            left = [number for number in maker.inputs if not self.stops(number)]
            if not left:
                self._frontier.add(self._places[id(maker)])
            open_ += left

    def _left_as_it_is(self, result: Result) -> Iterator[Found]:
        """Where it leaves, and what moved it there: out of values without counterpart, if so."""
        maker = self._program.maker(result.value)
        if result.leads:
            yield result.frames, f"passed to {result.leads}"
        elif maker is None:
            yield result.frames, "returned as given"
        yield from self.origin(result.value)
        while maker is not None:
            yield maker.frames, maker.name
            inputs = maker.inputs if maker.moves else ()
            odd = (self._program.maker(number) for number in inputs if not self._plain(number))
            maker = next(odd, None)

    def found(self, few: Callable[[int], bool]) -> Iterator[Found]:
        """The places, the likeliest first: masks, which match by chance, are the last."""
        yield from self._leaving
        masks = [x for x in self.frontier if all(map(few, x.outputs))]
        for operation in (*(x for x in self.frontier if x not in masks), *masks):
            given = self.given(operation)
            odd = [found for number in given for found in self.origin(number)]
            yield from (*odd, (operation.frames, operation.name))
            if not odd:
                yield from self._by_chance(given)
        for operation in self.region:
            for number in self.given(operation):
                yield from self.origin(number)

    def _by_chance(self, numbers: Iterable[int]) -> Iterator[Found]:
        """The makers of values that may have their counterpart by chance."""
        for number in numbers:
            twin, maker = self._twin(number), self._program.maker(number)
            if twin is not None and twin.likeness is Likeness.FEW and maker is not None:
                yield maker.frames, maker.name

    def _twin(self, number: int) -> Twin | None:
        return None if self._program.values[number].known else self._twin_of(number)

    def stops(self, number: int) -> bool:
        """True for a value that is known or has a counterpart, and for what repeats such a one.

        An odd counterpart counts if what made it so was given right values.
        """
        if number not in self._stopping:
            twin, maker = self._twin(number), self._program.maker(number)
            if twin is not None and not twin.plain:
                stops = all(
                    all(map(self.stops, made.inputs))
                    for made, *_ in self._origins(number, twin, self._twins)
                )
            else:
                stops = twin is not None or self._program.values[number].known
            if maker is not None and maker.name in HARMLESS:
                stops = stops or all(map(self.stops, maker.inputs))
            self._stopping[number] = stops
        return self._stopping[number]

    def origin(self, number: int, twins_of: TwinsOf | None = None) -> Iterator[Found]:
        """Where a value came to be its counterpart in another order, or times a number."""
        twin = self._twin(number) if twins_of is None else next(iter(twins_of(number)), None)
        if twin is not None:
            for maker, word, *_ in self._origins(number, twin, twins_of or self._twins):
                yield maker.frames, f"{maker.name}: {word}"

    def odd(self) -> Iterator[tuple[int, list[Twin]]]:
        """Values that are odd from there on, before the frontier, with their counterparts."""
        for operation in (*self.frontier, *self.region):
            for number in self.given(operation):
                twin = self._twin(number)
                if twin is not None and not twin.plain and self.stops(number):
                    for _, _, at, alike in self._origins(number, twin, self._twins):
                        yield at, alike

    def _origins(
        self, number: int, twin: Twin, twins_of: TwinsOf
    ) -> Iterator[tuple[Operation, str, int, list[Twin]]]:
        """The makers of what is odd, the word for it, and what they made, with its counterparts."""
        for as_odd, word in _ODD.items():
            at: int | None = number
            while at is not None and as_odd(twin, twin):
                maker, here = self._program.maker(at), at
                at = None
                if maker is not None:
                    wrong = (x for x in maker.inputs if not self._plain(x))
                    odd = (x for x in wrong if any(as_odd(y, twin) for y in twins_of(x)))
                    at = next(odd, None)
                    if at is None:
                        yield maker, word, here, [y for y in twins_of(here) if as_odd(y, twin)]

    def _plain(self, number: int) -> bool:
        twin = self._twin(number)
        return twin is not None and twin.plain

    def _twins(self, number: int) -> Sequence[Twin]:
        return () if self._program.values[number].known else self._twins_of(number)


def _reordered(one: Twin, other: Twin) -> bool:
    """True if one has the odd order of the other."""
    odd = other.likeness in (Likeness.EXCHANGED, Likeness.REORDERED)
    return odd and one.likeness is other.likeness


def _scaled(one: Twin, other: Twin) -> bool:
    """True if one has the factor of the other, which is not 1."""
    return other.factor != 1.0 and abs(one.factor - other.factor) <= 1e-3 * other.factor


_ODD = {_reordered: "reordered here", _scaled: "scaled here"}
"""What may be odd about a counterpart: whether it is about another one as well, and the word."""
