"""The source lines of a call at fault: where the port's code and the reference's part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from parity.core.calls import LeafMatch, Match
from parity.core.limits import r_limit
from parity.core.lines import Lines, SourceLine
from parity.lines.call import Key, Scene, Traced, placed
from parity.lines.frontier import Pair
from parity.lines.partings import Mistake, partings
from parity.lines.port_call import trace_port
from parity.lines.reference_call import Around, trace_reference
from parity.lines.source import AROUND, Frames, source_lines
from parity.lines.values import Values

FACTORS = (10.0, 3.0, 1.0, 0.3)
"""Units of rounding within which values are the same, tried until a result is not."""


@dataclass(frozen=True)
class Parted:
    """Lines at which two programs part, and the mistakes that are made there."""

    lines: Lines
    mistakes: tuple[Mistake, ...]

    def joined(self, more: "Parted") -> "Parted":
        """The lines and mistakes of both."""
        return Parted(self.lines.joined(more.lines), (*self.mistakes, *more.mistakes))


@dataclass(frozen=True)
class Aligned:
    """One run of a call on each side: what leaves it by key, and where the two part."""

    ref: Traced
    port: Traced
    leaves: Mapping[Key, LeafMatch]
    parted: tuple[Parted, ...]


def lines_of(scene: Scene, order: int, around: Around) -> Aligned:
    """The lines at which the local code of the reference's call with this order parts from the
    port's, of each mistake in it.

    Where those of the first are few, the lines that make the call are the last of them.
    """
    match = scene.match(order)
    while match.ref.tapped:  # what a tap shows is the work of the call around it
        match = scene.match(match.parent)
    port = trace_port(scene, match)
    ref = trace_reference(scene, match, port.opened, around)
    leaves = dict(_leaves(scene, match))
    first, *more = _parted(ref, port, leaves, r_limit(match.ref.kind).fail)
    if min(len(first.lines.port), len(first.lines.reference)) < ENOUGH and match.parent != -1:
        outer = scene.match(match.parent)
        own, name = match.ref.order, f"call of {match.ref.kind}"
        site = _site(trace_port(scene, outer, run=False), own, name)
        other = _site(trace_reference(scene, outer), own, name)
        first = first.joined(Parted(Lines(site, other), ()))
    return Aligned(ref, port, leaves, (first, *more))


ENOUGH = 3
"""A side with fewer lines shows where the call is made."""


def _site(traced: Traced, order: int, name: str) -> tuple[SourceLine, ...]:
    frames: Frames = traced.sites.get(order, ())
    return source_lines([(frames, name)])


def _parted(
    ref: Traced, port: Traced, leaves: Mapping[Key, LeafMatch], limit: float
) -> tuple[Parted, ...]:
    pairs = {
        key: Pair(ref.results[key], port.results[key])
        for key in leaves
        if key in ref.results and key in port.results
    }

    def wrong(values: Values) -> list[Pair]:
        return [pair for key, pair in pairs.items() if not _same(values, pair, leaves[key])]

    for factor in FACTORS:
        found = distinct(partings(ref.program, port.program, factor, wrong))
        if found:  # below the limit on R what parts again may be rounding: no mistake of its own
            return found if factor >= limit else (reduce(Parted.joined, found),)
    return (Parted(Lines(), ()),)


def distinct(found: Sequence[Mistake]) -> tuple[Parted, ...]:
    """The lines of each mistake, without those that a later one has for its own.

    Partings beside each other in the source are one, and so are those of one line, as in a loop.
    """
    kept: list[Parted] = []
    for mistake in found:
        ref, port = source_lines(mistake.parting.ref), source_lines(mistake.parting.port)
        own, all_ = Lines(port, ref), [other.lines for other in kept]
        one = Parted(own, (mistake,))
        again = [at for at, other in enumerate(all_) if _same_line(own, other)]
        if again:
            kept[again[0]] = kept[again[0]].joined(one)
        elif kept and (_places([own]) <= _places(all_) or _beside(all_[-1].port, port)):
            kept[-1] = kept[-1].joined(one)
        else:
            kept.append(one)
    after = [_places([one.lines for one in kept[at + 1 :]]) for at in range(len(kept))]
    return tuple(
        replace(one, lines=one.lines.without(places))
        for one, places in zip(kept, after, strict=True)
    )


def _same_line(one: Lines, other: Lines) -> bool:
    """True if the likeliest line of a side is the same."""
    sides = (one.port, other.port), (one.reference, other.reference)
    return any(x and y and x[0].place == y[0].place for x, y in sides)


def _beside(one: tuple[SourceLine, ...], other: tuple[SourceLine, ...]) -> bool:
    """True if the first lines are in one excerpt."""
    if not one or not other:
        return False
    return one[0].file == other[0].file and abs(one[0].line - other[0].line) <= AROUND


def _places(lines: Sequence[Lines]) -> set[str]:
    return {line.place for one in lines for line in (*one.port, *one.reference)}


def _leaves(scene: Scene, match: Match) -> Iterator[tuple[Key, LeafMatch]]:
    """Leaves that leave the call: inputs of calls inside it in their order, then its outputs."""
    for one in scene.inside(match):
        own = one.ref.tapped or one is match
        for leaf in one.outputs if own else one.inputs:
            yield (one.ref.order, leaf.ref.name), leaf


def _same(values: Values, pair: Pair, leaf: LeafMatch) -> bool:
    return values.equal(pair.ref.value, pair.port.value, lambda array: placed(array, leaf))
