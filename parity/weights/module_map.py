"""Modules of both sides that correspond: those that hold the same tensors.

A container corresponds to the one around the same modules. What has no tensors goes by its place
and name. A module of which the port holds the tensors elsewhere counts with the module around it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from parity.core.calls import ModuleInfo
from parity.core.globs import renamed
from parity.core.tensors import TensorPart, Weight

Ident = tuple[str, str]
"""A piece of a leaf of the port: its name and place."""

Ids = frozenset[Ident]

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

    def steps(self, paths: Sequence[str], port: bool) -> list[list[str]]:
        """Modules of one side by what they return: of a wrapper it is what is inside."""
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
    alike: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By module of the reference, all of the port that hold the very tensors that it holds, where
    one side has several."""


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
    held = frozenset(ref.keys() - lacking)
    return Folding(work.port_of, work.turn_of, held, bare, _alike(*sides))


def around(path: str, known: Collection[str]) -> str:
    """The nearest of the `known` paths around a module; the root if there is none."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path


@dataclass(frozen=True)
class _Held:
    """Pieces that each module holds: by itself, and with those inside; the turn they have, and
    those whose rows the two sides have in another order.
    """

    own: Mapping[str, Ids]
    inside: Mapping[str, Ids]
    turn: Mapping[str, Turn]
    moved: Ids = frozenset()


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
            if not (port.own[path] and ids <= port.moved):  # else its outputs are in another order
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
            layers.sort(key=lambda pair: pair not in named)
            # a layer that does more than it is named for is what wraps the plain one
            first = [pair for side in (layers, named) for pair in side if pair in alike]
            rest = [(a, b) for a, b in both if not ref.own[a] or not port.own[b]]
            outer = [(a, b) for a, b in rest if not (ref.own[a] or port.own[b])]
            steps = _in_steps(outer, returned) if paths[1:] and returned else []
            for path, name in (*first, *layers, *alike, *named, *steps, *rest):
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


def _in_steps(pairs: Sequence[tuple[str, str]], returned: Returned) -> list[tuple[str, str]]:
    """The pairs of modules, one around the other, that are the same step of both sides."""
    sides = (dict.fromkeys(side) for side in zip(*pairs, strict=True))
    steps = [returned.steps([*side], bool(port)) for port, side in enumerate(sides)]
    if len({*map(len, steps)}) != 1:
        return []
    both = zip(*steps, strict=True)
    return [(a, b) for ours, theirs in both for a in ours for b in theirs if (a, b) in pairs]


def _held(
    ref: Mapping[str, ModuleInfo], port: Mapping[str, ModuleInfo], weight_map: Sequence[Weight]
) -> tuple[_Held, _Held]:
    copies = _copies(weight_map)
    lines = [(line, *_piece(line, copies)) for line in weight_map if line.paired]
    turns: dict[str, set[Turn | None]] = defaultdict(set)
    for line, _, turn in lines:
        for path in _upwards(line.path):
            turns[path].add(turn)
    turn_of = {p: one for p, found in turns.items() if len(found) == 1 for one in found if one}
    by_ref = _of_modules(ref, ((line.path, ident) for line, ident, _ in lines))
    names = ((line.nnx_name.rpartition(".")[0], ident) for line, ident, _ in lines)
    owners = {line.path for line, _, _ in lines if line.in_turns}
    follow = [(line, ident) for line, ident, _ in lines if line.path in owners]  # biases do
    moved = frozenset(x for line, x in follow if line.in_turns or len(line.shape) == 1)
    return _Held(*by_ref, turn_of), _Held(*_of_modules(port, names), {}, moved)


def _copies(weight_map: Sequence[Weight]) -> Mapping[str, str]:
    """By leaf of the port, the one that stands for all whole leaves of the same values."""
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for line in weight_map:
        if line.paired and not line.of and not line.at:
            name = first.setdefault(line.name, line.nnx_name)
            old, new = found.get(line.nnx_name, line.nnx_name), found.setdefault(name, name)
            found[line.nnx_name] = new
            if old != new:
                found |= {leaf: new for leaf, one in found.items() if one == old}
    return found


def _alike(ref: _Held, port: _Held) -> dict[str, list[str]]:
    sides = defaultdict[Ids, tuple[list[str], list[str]]](lambda: ([], []))
    for at, side in enumerate((ref, port)):
        for path, ids in side.own.items():
            if path and ids and ids == side.inside[path] and path not in ref.turn:
                sides[ids][at].append(path)
    return {
        path: names
        for paths, names in sides.values()
        for path in (paths if len(paths) + len(names) > 2 else ())
    }


def _piece(line: Weight, copies: Mapping[str, str]) -> tuple[Ident, Turn | None]:
    """The piece of the port's leaf, but for its turn, and that."""
    part = line.at if isinstance(line.at, TensorPart) else TensorPart((None,))
    if part.turn is None:
        return (copies.get(line.nnx_name, line.nnx_name), str(part)), None
    all_turns = replace(part, spans=(None, *part.spans[1:]))
    return (line.nnx_name, str(all_turns)), (part.turn, line.nnx_shape[0])


def _of_modules(
    paths: Collection[str], pieces: Iterable[tuple[str, Ident]]
) -> tuple[dict[str, Ids], dict[str, Ids]]:
    """Pieces of each module by itself, and with those of all modules inside."""
    own: dict[str, set[Ident]] = defaultdict(set)
    inside: dict[str, set[Ident]] = defaultdict(set)
    for owner, ident in pieces:
        own[owner].add(ident)
        for path in _upwards(owner):
            inside[path].add(ident)
    one, other = ({path: frozenset(side[path]) for path in paths} for side in (own, inside))
    return one, other


def _upwards(path: str) -> list[str]:
    """A path and all those around it."""
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts), -1, -1)]
