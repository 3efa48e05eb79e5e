"""The source lines of a call at fault: where the port's code and the reference's part."""

from collections.abc import Iterator

from parity.core.calls import LeafMatch, Match
from parity.core.lines import MOST, Lines, SourceLine
from parity.lines.call import Key, Scene, Traced, placed, trace_port, trace_reference
from parity.lines.frontier import Pair, parting
from parity.lines.source import Frames, source_lines
from parity.lines.values import Values

FACTORS = (10.0, 3.0, 1.0, 0.3)
"""Units of rounding within which values are the same, tried until a result is not."""


def lines_of(scene: Scene, match: Match) -> Lines:
    """The lines at which the local code of a matched call parts.

    They come from one run of the call on each side. Where they are few, the lines that make the
    call are the last of them.
    """
    ref, port = trace_reference(scene, match), trace_port(scene, match)
    found = _parted(scene, match, ref, port)
    if min(len(found.port), len(found.reference)) >= ENOUGH or match.parent == -1:
        return found
    outer = scene.match(match.parent)
    order, name = match.ref.order, f"call of {match.ref.kind}"
    site = _site(trace_port(scene, outer, run=False), order, name)
    other = _site(trace_reference(scene, outer), order, name)
    return Lines(_joined(found.port, site), _joined(found.reference, other))


ENOUGH = 3
"""A side with fewer lines shows where the call is made."""


def _site(traced: Traced, order: int, name: str) -> tuple[SourceLine, ...]:
    frames: Frames = traced.sites.get(order, ())
    return source_lines([(frames, name)])


def _joined(one: tuple[SourceLine, ...], other: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    places = {line.place for line in one}
    return (*one, *(line for line in other if line.place not in places))[:MOST]


def _parted(scene: Scene, match: Match, ref: Traced, port: Traced) -> Lines:
    leaves = dict(_leaves(scene, match))
    pairs = {
        key: Pair(ref.results[key], port.results[key])
        for key in leaves
        if key in ref.results and key in port.results
    }
    for factor in FACTORS:
        values = Values(ref.program, port.program, factor)
        wrong = [pair for key, pair in pairs.items() if not _same(values, pair, leaves[key])]
        if wrong:
            parted = parting(ref.program, port.program, values, wrong)
            return Lines(source_lines(parted.port), source_lines(parted.ref))
    return Lines()


def _leaves(scene: Scene, match: Match) -> Iterator[tuple[Key, LeafMatch]]:
    """What leaves the call: inputs of calls inside it in their order, then its outputs."""
    for one in scene.inside(match):
        own = one.ref.tapped or one is match
        for leaf in one.outputs if own else one.inputs:
            yield (one.ref.order, leaf.ref.name), leaf


def _same(values: Values, pair: Pair, leaf: LeafMatch) -> bool:
    return values.equal(pair.ref.value, pair.port.value, lambda array: placed(array, leaf))
