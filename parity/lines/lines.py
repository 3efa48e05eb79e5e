"""The source lines of a call at fault: where the port's code and the reference's part."""

from collections.abc import Iterator, Sequence

from parity.core.calls import LeafMatch, Match
from parity.core.lines import MOST, Lines, SourceLine
from parity.lines.call import Key, Scene, Traced, placed
from parity.lines.frontier import Pair, Parting
from parity.lines.partings import partings
from parity.lines.port_call import trace_port
from parity.lines.reference_call import trace_reference
from parity.lines.source import AROUND, Frames, source_lines
from parity.lines.values import Values

FACTORS = (10.0, 3.0, 1.0, 0.3)
"""Units of rounding within which values are the same, tried until a result is not."""


def lines_of(scene: Scene, order: int) -> tuple[Lines, ...]:
    """The lines at which the local code of the reference's call with this order parts from the
    port's, of each mistake in it.

    They come from one run of the call on each side. Where those of the first are few, the lines
    that make the call are the last of them.
    """
    match = scene.match(order)
    while match.ref.tapped:  # what a tap shows is the work of the call around it
        match = scene.match(match.parent)
    port = trace_port(scene, match)
    ref = trace_reference(scene, match, port.opened)
    found = _parted(scene, match, ref, port)
    if min(len(found[0].port), len(found[0].reference)) >= ENOUGH or match.parent == -1:
        return found
    outer = scene.match(match.parent)
    own, name = match.ref.order, f"call of {match.ref.kind}"
    site = _site(trace_port(scene, outer, run=False), own, name)
    other = _site(trace_reference(scene, outer), own, name)
    first = Lines(_joined(found[0].port, site), _joined(found[0].reference, other))
    return first, *found[1:]


ENOUGH = 3
"""A side with fewer lines shows where the call is made."""


def _site(traced: Traced, order: int, name: str) -> tuple[SourceLine, ...]:
    frames: Frames = traced.sites.get(order, ())
    return source_lines([(frames, name)])


def _joined(one: tuple[SourceLine, ...], other: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    places = {line.place for line in one}
    return (*one, *(line for line in other if line.place not in places))[:MOST]


def _parted(scene: Scene, match: Match, ref: Traced, port: Traced) -> tuple[Lines, ...]:
    leaves = dict(_leaves(scene, match))
    pairs = {
        key: Pair(ref.results[key], port.results[key])
        for key in leaves
        if key in ref.results and key in port.results
    }

    def wrong(values: Values) -> list[Pair]:
        return [pair for key, pair in pairs.items() if not _same(values, pair, leaves[key])]

    for factor in FACTORS:
        found = partings(ref.program, port.program, factor, wrong)
        if found:
            return distinct(found)
    return (Lines(),)


def distinct(found: Sequence[Parting]) -> tuple[Lines, ...]:
    """The lines of each parting, without those that a later one has for its own.

    Partings beside each other in the source are one, and so are those that share a line on each
    side.
    """
    kept: list[Lines] = []
    for parted in found:
        one = Lines(source_lines(parted.port), source_lines(parted.ref))
        if kept and (_places([one]) <= _places(kept) or _same_mistake(kept[-1], one)):
            last = kept.pop()
            one = Lines(_joined(last.port, one.port), _joined(last.reference, one.reference))
        kept.append(one)
    after = [_places(kept[at + 1 :]) for at in range(len(kept))]
    return tuple(
        Lines(_without(one.port, places), _without(one.reference, places))
        for one, places in zip(kept, after, strict=True)
    )


def _same_mistake(one: Lines, other: Lines) -> bool:
    return _beside(one.port, other.port) or (
        _share(one.port, other.port) and _share(one.reference, other.reference)
    )


def _share(one: tuple[SourceLine, ...], other: tuple[SourceLine, ...]) -> bool:
    return not {line.place for line in one}.isdisjoint(line.place for line in other)


def _beside(one: tuple[SourceLine, ...], other: tuple[SourceLine, ...]) -> bool:
    """True if the first lines are in one excerpt."""
    if not one or not other:
        return False
    return one[0].file == other[0].file and abs(one[0].line - other[0].line) <= AROUND


def _places(lines: Sequence[Lines]) -> set[str]:
    return {line.place for one in lines for line in (*one.port, *one.reference)}


def _without(lines: tuple[SourceLine, ...], places: set[str]) -> tuple[SourceLine, ...]:
    """The lines that are at none of these places; all, if none is left."""
    return tuple(line for line in lines if line.place not in places) or lines


def _leaves(scene: Scene, match: Match) -> Iterator[tuple[Key, LeafMatch]]:
    """Leaves that leave the call: inputs of calls inside it in their order, then its outputs."""
    for one in scene.inside(match):
        own = one.ref.tapped or one is match
        for leaf in one.outputs if own else one.inputs:
            yield (one.ref.order, leaf.ref.name), leaf


def _same(values: Values, pair: Pair, leaf: LeafMatch) -> bool:
    return values.equal(pair.ref.value, pair.port.value, lambda array: placed(array, leaf))
