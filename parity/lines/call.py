"""One matched call of both sides: what it is given, and what is kept of it.

It gets the reference's inputs, and the calls inside it return the reference's outputs: so only its
local code is laid open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.core.arrays import Array, as_read
from parity.core.calls import Call, LeafMatch, Match, above
from parity.core.store import Store
from parity.force.common import Sides
from parity.lines.operations import Program, Result
from parity.lines.source import Frames

Key = tuple[int, str]
"""A leaf that leaves the call: the `order` of the call that it is of, and the reference's name."""


@dataclass(frozen=True)
class Scene:
    """The recorded case: matches, all calls of the two sides, and both sides to run again."""

    matches: Sequence[Match]
    calls: tuple[Sequence[Call], Sequence[Call]]
    sides: Sides
    store: Store

    def match(self, order: int) -> Match:
        """The match of the reference's call with this order."""
        return next(match for match in self.matches if match.ref.order == order)

    def inside(self, match: Match) -> list[Match]:
        """The matches of a call and those inside it, itself the last."""
        parents = {one.ref.order: one.parent for one in self.matches}
        order = match.ref.order
        return [one for one in self.matches if order in above(one.ref.order, parents)]


@dataclass
class Traced:
    """The program of one side, what leaves it by key, and the stack at each call inside it.

    `opened` are the calls inside that ran, since values under a transformation cannot be replaced.
    """

    program: Program = field(default_factory=Program)
    results: dict[Key, Result] = field(default_factory=dict)
    sites: dict[int, Frames] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)


def placed(array: Array, leaf: LeafMatch) -> Array:
    """The reference's array in the layout in which the port's is expected."""
    return as_read(np.moveaxis(array, 1, -1) if leaf.ref.moved else array, leaf.reading)
