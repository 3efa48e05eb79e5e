"""A part of a case that is judged and explained by itself: one call and all calls inside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parity.core.calls import Call, Match
from parity.core.verdicts import Fault
from parity.diagnose.case_record import CaseRecord
from parity.force.common import within
from parity.judge.faults import Found
from parity.measure.exclusive import Exclusives

Calls = tuple[Sequence[Call], Sequence[Call]]
"""All calls of the reference and of the port."""


@dataclass(frozen=True)
class Extent:
    """Matches of one call and of those inside it, which come first, and all calls there."""

    matches: Sequence[Match]
    calls: Calls


@dataclass(frozen=True)
class Part:
    """Judged rows of an extent.

    `scene` is what its faults are explained from, `None` if it has none.
    """

    extent: Extent
    found: Sequence[Found]
    exclusives: Exclusives
    scene: CaseRecord | None


def extents(matches: Sequence[Match], calls: Calls) -> tuple[Extent, ...]:
    """An extent for each match that is in no other."""
    parents = {match.ref.order: match.parent for match in matches}

    def top(order: int) -> int:
        while parents[order] != -1:
            order = parents[order]
        return order

    groups: dict[int, list[Match]] = {}
    for match in matches:
        groups.setdefault(top(match.ref.order), []).append(match)
    return tuple(_extent(group, calls) for group in groups.values())


def _extent(matches: Sequence[Match], calls: Calls) -> Extent:
    *inner, top = matches  # a call returns after those inside it
    inside = within(calls[0], top.ref.order), within(calls[1], top.port.order)
    outer = replace(top, ref=replace(top.ref, parent=-1), port=replace(top.port, parent=-1))
    return Extent((*inner, outer), inside)


def part_of(fault: Fault, parts: Sequence[Part]) -> Part:
    """The part that the faulty call is in."""
    place = fault.path, fault.call
    return next(
        part for part in parts if any((x.row.path, x.row.call) == place for x in part.found)
    )
