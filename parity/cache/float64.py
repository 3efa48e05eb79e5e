"""What the reference does in float64, kept call by call.

What a call does depends on what is put in the place of values inside it, which the port decides:
calls that it makes otherwise are made again. Values are those of the run that they came from, bit
for bit.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.cache.memory import Memory
from parity.core.arrays import comparable
from parity.core.calls import Call, Leaf, Match
from parity.core.store import Store
from parity.force.common import Array, Arrays, Listener
from parity.force.float64 import TorchModules
from parity.force.torch import with_all_around


@dataclass(frozen=True)
class KeptFloat64:
    """A `Float64` that asks `live` for what `memory` does not have.

    `alike` says that a call does the same whatever other calls were made before it.
    """

    live: TorchModules
    memory: Memory
    alike: bool

    def own(
        self,
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
        listener: Listener,
        wanted: Collection[int],
    ) -> Mapping[int, str]:
        """Tell what is known; the rest is run, and kept unless it fails."""
        if not self.alike:
            return self.live.own(matches, calls, store, listener, wanted)
        plan = _Plan(matches, calls, wanted)
        missing = {order for order in wanted if not self.memory.knows(plan.name(order))}
        if missing and not plan.apart:
            missing = set(wanted)
        there = set(wanted) - missing
        waiting = {match.ref.order: match for match in matches}
        made: dict[str, dict[str, Any]] = defaultdict(dict)

        def known(match: Match, section: str, order: int) -> Arrays:
            found = self.memory.find(plan.name(order), section) if order in there else None
            leaves = match.ref.outputs if section == OWN else match.ref.inputs
            return {} if found is None else _Kept(found, leaves, self.memory, store)

        def heard(match: Match, handed: Arrays, outputs: Arrays) -> None:
            order, section = match.ref.order, _handed_to(match.ref)
            waiting.pop(order, None)
            if match.parent in missing:
                handed = _of(handed, match.ref.inputs)
                made[plan.name(match.parent)][section] = self._put(handed, match.ref.inputs, store)
            else:
                handed = known(match, section, match.parent)
            if order in missing:
                outputs = _of(outputs, match.ref.outputs)
                made[plan.name(order)][OWN] = self._put(outputs, match.ref.outputs, store)
            else:
                outputs = known(match, OWN, order)
            listener(match, handed, outputs)

        if missing:
            problems = self.live.own(matches, calls, store, heard, missing)
            if problems:
                return problems
            for name, sections in made.items():
                if OWN in sections:
                    self.memory.add(name, sections)
        for order, match in waiting.items():
            if order in there or match.parent in there:
                section = _handed_to(match.ref)
                listener(match, known(match, section, match.parent), known(match, OWN, order))
        return {}

    def whole(self, call: Call, store: Store) -> Arrays:
        """As it was found before, else found now."""
        name = f"whole {_name(call)}"
        found = self.memory.find(name, OWN)
        if found is not None:
            return _Kept(found, call.outputs, self.memory, store)
        arrays = self.live.whole(call, store)
        self.memory.add(name, {OWN: self._put(arrays, call.outputs, store)})
        return arrays

    def _put(self, arrays: Arrays, leaves: Sequence[Leaf], store: Store) -> dict[str, Any]:
        """Where these lie now: `None` for what the recorded array is, but for its type."""
        found = {}
        for leaf in leaves:
            if leaf.name in arrays:
                array = arrays[leaf.name]
                plain = None if leaf.buffer is None else _wider(store.get(leaf.buffer))
                same = plain is not None and _equal(plain, array)
                found[leaf.name] = None if same else self.memory.put(array)
        return found


OWN = "own"


class _Plan:
    """What stands in the place of values while the calls of a part are made.

    The name of a call holds all of that on which its result depends. Where some leaves have no
    counterpart, values go from call to call: then it holds the whole plan, and calls cannot be made
    `apart` from one another.
    """

    def __init__(
        self, matches: Sequence[Match], calls: Sequence[Call], wanted: Collection[int]
    ) -> None:
        self._calls = {call.order: call for call in calls}
        self._around = {match.ref.order: match.parent for match in matches}
        self._inside: dict[int, list[Call]] = defaultdict(list)
        for call in calls:
            self._inside[call.parent].append(call)
        self._names: dict[int, str] = {}
        self.apart = all(_arrays(match.ref) <= _replaced(match)
                         for match in matches if match.ref.parent != -1)  # fmt: skip
        self._plan = ""
        if not self.apart:
            leaves = [(_name(match.ref), sorted(_replaced(match))) for match in matches]
            made = sorted(_name(self._calls[x]) for x in with_all_around(wanted, calls))
            self._plan = _digest(leaves, made)

    def name(self, order: int) -> str:
        """What a matched call and what happens inside it are called."""
        if order not in self._names:
            call = self._calls[order]
            parts = []
            waiting = list(self._inside[order])
            while waiting:
                one = waiting.pop()
                if one.order not in self._around:
                    waiting += self._inside[one.order]
                elif one.in_place and not one.tapped:  # what it writes is its own in float64
                    parts.append(self.name(one.order))
                else:
                    parts.append(_name(one))
            if call.tapped:  # its value is made by the code around it, of what is inside that
                parts.append(self.name(self._around[order]))
            self._names[order] = f"{_name(call)} {_digest(self._plan, sorted(parts))}"
        return self._names[order]


def _arrays(call: Call) -> set[tuple[str, str]]:
    """What of a call is an array."""
    both = (("in", call.inputs), ("out", call.outputs))
    return {
        (side, leaf.name) for side, leaves in both for leaf in leaves if leaf.buffer is not None
    }


def _replaced(match: Match) -> set[tuple[str, str]]:
    """What of it is put in the place of what the float64 run has there."""
    both = (("in", match.inputs), ("out", match.outputs))
    return {(side, leaf.ref.name) for side, leaves in both for leaf in leaves
            if comparable(leaf) is not None}  # fmt: skip


def _name(call: Call) -> str:
    """Of one call, however many others were recorded."""
    return f"{call.path}#{call.number}"


def _handed_to(call: Call) -> str:
    return f"handed to {_name(call)}"


def _digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:32]


def _of(arrays: Arrays, leaves: Sequence[Leaf]) -> dict[str, Array]:
    """The arrays of recorded leaves, each made once."""
    return {leaf.name: arrays[leaf.name] for leaf in leaves if leaf.name in arrays}


def _wider(array: Array) -> Array:
    if array.dtype.kind in "biu":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _equal(one: Array, other: Array) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    # as bytes: zeros have signs, and NaN equals itself
    return np.array_equal(_bytes(one), _bytes(other))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _Kept(Mapping[str, Array]):
    """Arrays that are read when they are asked for."""

    def __init__(
        self, found: Mapping[str, Any], leaves: Sequence[Leaf], memory: Memory, store: Store
    ) -> None:
        self._found, self._memory, self._store = found, memory, store
        self._buffers = {leaf.name: leaf.buffer for leaf in leaves}

    def __getitem__(self, name: str) -> Array:
        place = self._found[name]
        if place is not None:
            return self._memory.get(place)
        buffer = self._buffers[name]
        assert buffer is not None  # `None` stands for what was recorded
        return np.ascontiguousarray(_wider(self._store.get(buffer)))

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Any:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
