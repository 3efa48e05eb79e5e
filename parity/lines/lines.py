"""The source lines of a call at fault: where the port's code and the reference's part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from parity.core.calls import LeafMatch, Match
from parity.core.limits import r_limit
from parity.core.lines import Lines, SourceLine
from parity.lines.call import Key, Scene, Traced, placed
from parity.lines.frontier import Pair
from parity.lines.partings import Mistake, partings
from parity.lines.port_call import trace_port
from parity.lines.reference_call import Around, trace_reference
from parity.lines.source import AROUND, Frames, callers, source_lines
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


Differ = Callable[[Parted, Mistake], bool]
"""True if a mistake has another cause than those before it, however near it is."""


@dataclass(frozen=True)
class Aligned:
    """One run of a call on each side: what leaves it by key, and the mistakes in it.

    `site` is where the call is made, if its own lines are few. What parts again is no mistake of
    its own, but rounding, if they are not `apart`.
    """

    ref: Traced
    port: Traced
    leaves: Mapping[Key, LeafMatch]
    mistakes: tuple[Mistake, ...]
    apart: bool
    site: Lines = field(default_factory=Lines)

    @property
    def whole(self) -> bool:
        """True if all that leaves the call is known on both sides."""
        return self.leaves.keys() <= self.ref.results.keys() & self.port.results.keys()

    def parted(self, differ: Differ = lambda one, other: False) -> tuple[Parted, ...]:
        """The lines of each mistake."""
        found = distinct(self.mistakes, differ) or (Parted(Lines(), ()),)
        found = tuple(replace(x, lines=x.lines.joined(_callers(x.mistakes))) for x in found)
        first, *more = found if self.apart else (reduce(Parted.joined, found),)
        return replace(first, lines=first.lines.joined(self.site)), *more


def lines_of(scene: Scene, order: int, around: Around) -> Aligned:
    """The mistakes in the local code of the reference's call with this order, by their lines."""
    match = scene.match(order)
    while match.ref.tapped:  # what a tap shows is the work of the call around it
        match = scene.match(match.parent)
    port = trace_port(scene, match)
    ref = trace_reference(scene, match, port.opened, around)
    found = _aligned(ref, port, dict(_leaves(scene, match)), r_limit(match.ref.kind).fail)
    first = found.parted()[0].lines
    if min(len(first.port), len(first.reference)) >= ENOUGH or match.parent == -1:
        return found
    outer = scene.match(match.parent)
    own, name = match.ref.order, f"call of {match.ref.kind}"
    site = _site(trace_port(scene, outer, run=False), own, name)
    other = _site(trace_reference(scene, outer), own, name)
    return replace(found, site=Lines(site, other))


ENOUGH = 3
"""A side with fewer lines shows where the call is made."""


def _site(traced: Traced, order: int, name: str) -> tuple[SourceLine, ...]:
    frames: Frames = traced.sites.get(order, ())
    return source_lines([(frames, name)])


def _aligned(ref: Traced, port: Traced, leaves: Mapping[Key, LeafMatch], limit: float) -> Aligned:
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
            return Aligned(ref, port, leaves, tuple(found), factor >= limit)
    return Aligned(ref, port, leaves, (), False)


def _callers(mistakes: Sequence[Mistake]) -> Lines:
    """Where the code that parts first is called from another file, as a helper is."""
    return Lines(
        callers(found for one in mistakes for found in one.parting.port),
        callers(found for one in mistakes for found in one.parting.ref),
    )


def lines_at(found: Sequence[Mistake]) -> list[Lines]:
    """The lines of each mistake, the likeliest first, without those that a later one has too."""
    made = [Lines(source_lines(one.parting.port), source_lines(one.parting.ref)) for one in found]
    later = [_places(made[at:]) for at in range(1, len(made) + 1)]
    return [lines.without(at) for lines, at in zip(made, later, strict=True)]


def distinct(
    found: Sequence[Mistake], differ: Differ = lambda one, other: False
) -> tuple[Parted, ...]:
    """The lines of each mistake, without those that a later one has for its own.

    Partings beside each other in the source are one, and so are those of one line, as in a loop.
    """
    kept: list[Parted] = []
    for mistake, own in zip(found, lines_at(found), strict=True):
        all_ = [other.lines for other in kept]
        one = Parted(own, (mistake,))
        again = [at for at, other in enumerate(all_) if same_line(own, other)]
        near = kept and (_places([own]) <= _places(all_) or _beside(all_[-1].port, own.port))
        at = again[0] if again else len(kept) - 1
        if (again or near) and not differ(kept[at], mistake):
            kept[at] = kept[at].joined(one)
        else:
            kept.append(one)
    after = [_places([one.lines for one in kept[at + 1 :]]) for at in range(len(kept))]
    return tuple(
        replace(one, lines=one.lines.without(places))
        for one, places in zip(kept, after, strict=True)
    )


def same_line(one: Lines, other: Lines, *, both: bool = False) -> bool:
    """True if the likeliest line of a side is the same, or of both."""
    sides = (one.port, other.port), (one.reference, other.reference)
    same = [bool(x and y) and x[0].place == y[0].place for x, y in sides]
    return all(same) if both else any(same)


def beside_line(one: Lines, other: Lines) -> bool:
    """True if a likeliest line of the other is one of these, or the port's are in one excerpt."""
    likeliest = _places([Lines(other.port[:1], other.reference[:1])])
    return not likeliest.isdisjoint(_places([one])) or _beside(one.port, other.port)


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
        inputs = () if one.port.tapped else one.inputs
        for leaf in one.outputs if own else inputs:
            yield (one.ref.order, leaf.ref.name), leaf


def _same(values: Values, pair: Pair, leaf: LeafMatch) -> bool:
    return values.equal(pair.ref.value, pair.port.value, lambda array: placed(array, leaf))
