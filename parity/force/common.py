"""Which of a call's leaves are replaced by the reference's, and in what order calls begin."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from flax import nnx
from jaxtyping import Shaped

from parity.capture import nnx as capture_nnx
from parity.core.arrays import comparable, read
from parity.core.calls import Call, LeafMatch, Match
from parity.core.store import Store

Array = Shaped[np.ndarray, "..."]
Arrays = Mapping[str, Array]

Listener = Callable[[Match, Arrays, Arrays], None]
"""Hears of each call: what its parent handed over and what it returned by itself, by leaf name."""


class NotMeasured(Exception):
    """The reference gives no float64 values; the message says why, as reports do."""


class Float64(Protocol):
    """What the reference of one case does in float64 on the inputs that were recorded.

    Arrays are in the port's layout, as recorded leaves are.
    """

    def own(
        self,
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
        listener: Listener,
        wanted: Collection[int],
    ) -> Mapping[int, str]:
        """Tell `listener` what calls do while those inside them return what was recorded.

        `calls` are all that the reference made. Of those whose `order` is not `wanted` it hears
        only what they are handed. Returns why others are not known, by their `order`.
        """
        ...

    def whole(self, call: Call, store: Store) -> Arrays:
        """Outputs of one call with all that is inside it.

        Raises:
            NotMeasured: they are not known.
        """
        ...


@dataclass(frozen=True)
class Sides:
    """The reference in float64, and the port's modules by path and what was called on its root."""

    reference: Float64
    nnx_modules: Mapping[str, nnx.Module]
    nnx_method: capture_nnx.Method

    def value(self, name: str) -> Array | None:
        """The values of the port's tensor of that full name; `None` if it is no module's own."""
        path, _, own = name.rpartition(".")
        module = self.nnx_modules.get(path)
        held = None if module is None else capture_nnx.own_variables(module).get(own)
        return None if held is None else np.asarray(held[...])


def by_port_leaf(leaves: Sequence[LeafMatch]) -> dict[str, LeafMatch]:
    """Leaves that both sides have, by the port's name."""
    return {leaf.port.name: leaf for leaf in leaves if leaf.port and comparable(leaf)}


def values(match: Match, store: Store) -> list[Array]:
    """Arrays for a call of the port: the reference's where it has them, else the port's own."""
    forced, found = by_port_leaf(match.inputs), []
    for leaf in match.port.inputs:
        if leaf.buffer is not None:
            paired = forced.get(leaf.name)
            found.append(store.get(leaf.buffer) if paired is None else reference(paired, store))
    return found


def reference(leaf: LeafMatch, store: Store) -> Array:
    """The reference's array of a leaf in the port's layout."""
    assert leaf.ref.buffer is not None
    return read(store, leaf.ref.buffer, leaf.undo)


def same(leaf: LeafMatch) -> bool:
    """Whether both sides recorded the same bytes."""
    return not leaf.undo and leaf.port is not None and leaf.ref.buffer == leaf.port.buffer


def unforced(match: Match) -> str:
    """Why the call cannot be given the reference's inputs, if it cannot."""
    problem = next((leaf.problem for leaf in match.inputs if leaf.problem), None)
    if problem:
        return f"not measured: an input has {problem}"
    both = all(any(leaf.buffer for leaf in call.inputs) for call in (match.ref, match.port))
    return "not measured: no input has a counterpart" if both and not match.inputs else ""


def within(calls: Sequence[Call], order: int) -> list[Call]:
    """One call and those inside it; it is in no other then."""
    parents = {call.order: call.parent for call in calls}

    def under(one: int) -> bool:
        while one not in (-1, order):
            one = parents[one]
        return one == order

    inside = [call for call in calls if under(call.order)]
    return [replace(call, parent=-1) if call.order == order else call for call in inside]


def by_turn(calls: Sequence[Call]) -> Mapping[tuple[str, int], Call]:
    """Calls by path and by how many calls of that path began before.

    `Call.number` counts by completion: the two differ where a module calls itself.
    """
    inside: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        inside[call.parent].append(call)
    turns: dict[str, int] = defaultdict(int)
    found: dict[tuple[str, int], Call] = {}
    waiting = list(reversed(inside[-1]))
    while waiting:
        call = waiting.pop()
        found[call.path, turns[call.path]] = call
        turns[call.path] += 1
        waiting.extend(reversed(inside[call.order]))
    return found
