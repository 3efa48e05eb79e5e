"""A run on recorded arrays: the protocol of the reference, the records, and whose turn it is."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.core.arrays import Array, comparable, read
from parity.core.calls import Call, Leaf, LeafMatch, Match, above
from parity.core.store import Store

STEP = 2.0**-20
"""By how much a result is changed, relatively: 16 roundings of float32. Another order of summation
may put a value on the other side of a kink, as of ReLU at 0; this is farther than that."""

Arrays = Mapping[str, Array]

Listener = Callable[[Match, Arrays, Arrays], None]
"""Callback for each call: what its parent passed to it and what it returned, by leaf name."""


class NotMeasured(Exception):
    """The reference gives no float64 values; the message says why, as reports do."""


@dataclass(frozen=True)
class Recording:
    """The calls to make again: the last of `matches`, and those inside it.

    `calls` are all that one side made in it. `narrowing` is given the `order` of each call of the
    reference whose own code rounds to fewer bits, as `x.bfloat16()` does.
    """

    matches: Sequence[Match]
    calls: Sequence[Call]
    store: Store
    narrowing: Callable[[int], None] = lambda order: None

    @property
    def root(self) -> Match:
        """The match of the outermost call."""
        return self.matches[-1]


class Float64(Protocol):
    """The reference of one case in float64, on the inputs that were recorded.

    Arrays are in the port's layout, as recorded leaves are.
    """

    def own(
        self, recording: Recording, listener: Listener, wanted: Collection[int], sample: int = 0
    ) -> Mapping[int, str]:
        """Pass to `listener` what calls do while those inside them return what was recorded.

        Of those whose `order` is not `wanted` it gets only the inputs. With a number for `sample`
        all results of operations are changed by a few roundings, if that can be. Returns why others
        are not known, by their `order`.
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

    def module(self, match: Match) -> nnx.Module:
        """The port's module of a call, cut out where it is one of several that are stacked."""
        module = self.nnx_modules[match.port.path]
        return module if match.turn is None else capture_nnx.layer(module, match.turn)

    def value(self, name: str) -> Array | None:
        """The values of the port's tensor of that full name; `None` if it is no module's own."""
        path, _, own = name.rpartition(".")
        module = self.nnx_modules.get(path)
        held = None if module is None else capture_nnx.own_variables(module).get(own)
        return None if held is None else np.asarray(held[...])


class Turns:
    """The matches of the calls of one side, by `order`, in the order in which these begin.

    `Call.number` counts by completion: the two differ where a module calls itself.
    """

    def __init__(self, matches: Mapping[int, Match], calls: Sequence[Call]) -> None:
        self._inside: dict[int, list[Call]] = defaultdict(list)
        for call in calls:
            self._inside[call.parent].append(call)
        self._turns: dict[str, deque[Match | None]] = defaultdict(deque)
        for call in self._calls_inside(-1):
            self._turns[call.path].append(matches.get(call.order))

    def next(self, path: str) -> Match | None:
        """The match of the call of `path` that begins now."""
        return self._turns[path].popleft() if self._turns[path] else None

    def skip(self, order: int) -> None:
        """Pass over the calls inside one that is not made."""
        for call in self._calls_inside(order):
            self.next(call.path)

    def _calls_inside(self, order: int) -> Iterator[Call]:
        for call in self._inside[order]:
            yield call
            yield from self._calls_inside(call.order)


def by_port_leaf(leaves: Sequence[LeafMatch]) -> dict[str, LeafMatch]:
    """Leaves that both sides have, by the port's name."""
    return {leaf.port.name: leaf for leaf in leaves if leaf.port and comparable(leaf)}


def forced_leaves(match: Match) -> dict[str, LeafMatch]:
    """What is put in for the arguments of a call of the port, by the port's name.

    An array that it was given twice, as queries and as keys, stays one: so it is with those of
    which the reference was given one.
    """
    found = by_port_leaf(match.inputs)
    known = {leaf.port.buffer: leaf for leaf in found.values() if leaf.port}
    for leaf in match.port.inputs:
        if leaf.buffer in known:
            found.setdefault(leaf.name, known[leaf.buffer])
    return found


def by_ref_leaf(leaves: Sequence[LeafMatch]) -> dict[str, Leaf]:
    """The reference's leaves that the port has too, by name."""
    return {leaf.ref.name: leaf.ref for leaf in leaves if comparable(leaf)}


def values(match: Match, store: Store) -> list[Array]:
    """Arrays for a call of the port: the reference's where it has them, else the port's own."""
    forced, found = forced_leaves(match), []
    for leaf in match.port.inputs:
        if leaf.buffer is not None:
            paired = forced.get(leaf.name)
            found.append(store.get(leaf.buffer) if paired is None else reference(paired, store))
    return found


def reference(leaf: LeafMatch, store: Store) -> Array:
    """The reference's array of a leaf in the port's layout."""
    assert leaf.ref.buffer is not None
    return read(store, leaf.ref.buffer, leaf.reading)


def same(leaf: LeafMatch) -> bool:
    """True if both sides recorded the same bytes."""
    return not leaf.reading and leaf.port is not None and leaf.ref.buffer == leaf.port.buffer


def unforced(match: Match) -> str:
    """The reason why the call cannot be given the reference's inputs, `""` if it can."""
    problem = next((leaf.problem for leaf in match.inputs if leaf.problem), None)
    if problem:
        return f"not measured: an input has {problem}"
    both = all(any(leaf.buffer for leaf in call.inputs) for call in (match.ref, match.port))
    return "not measured: no input has a counterpart" if both and not match.inputs else ""


def within(calls: Sequence[Call], order: int) -> list[Call]:
    """One call and those inside it; it is in no other then."""
    parents = {call.order: call.parent for call in calls}
    return [
        replace(call, parent=-1) if call.order == order else call
        for call in calls
        if order in above(call.order, parents)
    ]
