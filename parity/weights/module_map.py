"""Modules of both sides that correspond: those that hold the same tensors.

A container corresponds to the one around the same modules. What has no tensors goes by its place
and name. A module of which the port holds the tensors elsewhere counts with the module around it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parity.core.calls import ModuleInfo
from parity.core.globs import renamed
from parity.core.tensors import Part, Weight

Ids = frozenset[tuple[str, str]]
"""Pieces of the port's leaves: their names and places."""

Turn = tuple[int, int]
"""Which of how many layers that are stacked, and called in turn."""


class Returned(Protocol):
    """The modules that a run called, and those that returned the same."""

    def called(self, path: str) -> bool:
        """True if the reference calls the module."""
        ...

    def same(self, path: str, name: str) -> bool:
        """True if a module of the reference and one of the port return the same."""
        ...


@dataclass(frozen=True)
class Folding:
    """Modules that correspond.

    `port_of` maps paths of the reference to the port's. Several have the same where the port holds
    them stacked: `turn_of` says which of them each is. `held` are the reference's modules of whose
    tensors the port has all.
    """

    port_of: Mapping[str, str] = field(default_factory=dict)
    turn_of: Mapping[str, Turn] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    """The reference's modules without a tensor that no other has."""


def fold(
    ref: Mapping[str, ModuleInfo],
    port: Mapping[str, ModuleInfo],
    weight_map: Sequence[Weight],
    rename: Mapping[str, str],
    returned: Returned | None = None,
) -> Folding:
    """Pair modules by the tensors that they and those inside them hold.

    `rename` maps globs of the reference's paths to the port's, whatever they hold. Of modules that
    hold the same, one around the other, those belong together that return the same.
    """
    work = _Pairing(ref, port)
    given = {path: renamed(path, rename) for path in ref}
    for path, name in given.items():
        if not path or name != path:
            work.take(path, name)
    sides = _held(ref, port, weight_map)
    work.by_tensors(*sides, given, returned)
    work.by_place(given, *sides)
    lacking = {line.path for line in weight_map if line.name and not line.paired}
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in weight_map:
        owners[line.nnx_name or line.name, str(line.at)].add(line.path)
    alone = {path for paths in owners.values() if len(paths) == 1 for path in paths}
    bare = frozenset(path for path, info in ref.items() if path not in alone and weight_map)
    return Folding(work.port_of, work.turn_of, frozenset(ref.keys() - lacking), bare)


def around(path: str, known: Collection[str]) -> str:
    """The nearest of the `known` paths around a module; the root if there is none."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path


@dataclass(frozen=True)
class _Held:
    """Pieces that each module holds: by itself, and with those inside; the turn they have."""

    own: Mapping[str, Ids]
    inside: Mapping[str, Ids]
    turn: Mapping[str, Turn]


class _Pairing:
    def __init__(self, ref: Mapping[str, ModuleInfo], port: Mapping[str, ModuleInfo]) -> None:
        self._ref, self._port = ref, port
        self.port_of: dict[str, str] = {}
        self.turn_of: dict[str, Turn] = {}
        self._taken: dict[str, set[Turn | None]] = {}

    def take(self, path: str, name: str, turn: Turn | None = None) -> bool:
        """Pair two modules, if both are there and free."""
        taken = self._taken.get(name, set())
        free = path not in self.port_of and (
            not taken if turn is None else not taken & {None, turn}
        )
        if not free or path not in self._ref or name not in self._port:
            return False
        self.port_of[path] = name
        self._taken.setdefault(name, set()).add(turn)
        if turn is not None:
            self.turn_of[path] = turn
        return True

    def by_tensors(
        self,
        ref: _Held,
        port: _Held,
        given: Mapping[str, str],
        returned: Returned | None,
    ) -> None:
        """Modules inside which the same is held."""
        groups: dict[tuple[Ids, Turn | None], list[str]] = defaultdict(list)
        places: dict[Ids, list[str]] = defaultdict(list)
        for path, ids in ref.inside.items():
            if ids and not self._ref[path].container:
                groups[ids, ref.turn.get(path)].append(path)
        for path, ids in port.inside.items():
            places[ids].append(path)
        for (ids, turn), paths in groups.items():
            # of what never runs, others use the tensors
            paths.sort(key=lambda path: returned is not None and not returned.called(path))
            both = [(path, name) for path in paths for name in places[ids]]
            named = [(path, name) for path, name in both if given[path] == name]
            # what holds tensors by itself is a layer, and no container
            layers = [(a, b) for a, b in both if ref.own[a] and ref.own[a] == port.own[b]]
            alike = (
                [(a, b) for a, b in both if returned and returned.same(a, b)] if both[1:] else []
            )
            layers.sort(key=lambda pair: (pair not in alike, pair not in named))
            rest = [(a, b) for a, b in both if not ref.own[a] or not port.own[b]]
            for path, name in (*layers, *alike, *named, *rest):
                self.take(path, name, turn)

    def by_place(self, given: Mapping[str, str], ref: _Held, port: _Held) -> None:
        """Modules of which no tensors tell, under the same name in modules that correspond."""
        for path in self._ref:
            outer = around(path.rpartition(".")[0], self.port_of)
            inner = path.removeprefix(outer).lstrip(".")
            place = self.port_of.get(outer, "")
            for name in (f"{place}.{inner}" if place else inner, given[path]):
                if not (ref.inside.get(path) or port.inside.get(name)):
                    self.take(path, name, self.turn_of.get(outer))


def _held(
    ref: Mapping[str, ModuleInfo], port: Mapping[str, ModuleInfo], weight_map: Sequence[Weight]
) -> tuple[_Held, _Held]:
    own: tuple[dict[str, set[tuple[str, str]]], ...] = (
        {p: set() for p in ref},
        {p: set() for p in port},
    )
    turns: dict[str, set[Turn | None]] = defaultdict(set)
    for line in weight_map:
        if not line.paired:
            continue
        part = line.at if isinstance(line.at, Part) else None
        turn = part.turn if part else None
        ident = line.nnx_name, str(Part(part.spans[1:])) if part and turn is not None else str(part)
        owner, leaf_owner = (name.rpartition(".")[0] for name in (line.name, line.nnx_name))
        of_layer = None if turn is None else (turn, line.nnx_shape[0])
        for path in _upwards(owner):
            turns[path].add(of_layer)
        if owner in own[0]:
            own[0][owner].add(ident)
        if leaf_owner in own[1]:
            own[1][leaf_owner].add(ident)
    inside = [_inside(side) for side in own]
    stacked = {path: found.pop() for path, found in turns.items() if len(found) == 1}
    both = [{path: frozenset(ids) for path, ids in side.items()} for side in own]
    turn_of = {path: turn for path, turn in stacked.items() if turn is not None}
    return _Held(both[0], inside[0], turn_of), _Held(both[1], inside[1], {})


def _inside(own: Mapping[str, Collection[tuple[str, str]]]) -> dict[str, Ids]:
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, ids in own.items():
        for outer in _upwards(path):
            found[outer].update(ids)
    return {path: frozenset(found[path]) for path in own}


def _upwards(path: str) -> list[str]:
    """A path and all those around it."""
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts), -1, -1)]
