"""Tensors of both sides paired by their numbers, and by their names among what is left.

A tensor that holds the other's values, its axes moved, split or joined, is its counterpart whatever
it is called. Constants, and values that are wrong, have no such counterpart: of them the tensors
beside them tell, then the names.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from math import prod

import numpy as np

from parity.core.globs import renamed
from parity.core.tensors import Tensor, TensorPart
from parity.weights.axis_order import CLOSE, constant, same_values
from parity.weights.fused import Piece, Rule, pieces
from parity.weights.in_pieces import Owners, pieces_of

NAMES = {
    "weight": ("weight", "kernel", "scale", "embedding"),
    "running_mean": ("running_mean", "mean"),
    "running_var": ("running_var", "var"),
}
"""Flax's names of the tensors of PyTorch's modules."""

Tensors = Mapping[str, Tensor]


def paired(
    ref: Tensors, port: Tensors, rename: Mapping[str, str], rules: Sequence[Rule]
) -> list[Piece]:
    """A piece for each tensor of the reference, in order; several where it is held in several.

    `rules` and `rename` of tensors say what belongs together, whatever the values are.
    """
    work = _Pairing(ref, port, rename)
    for piece in pieces(rules, ref, port):
        work.add(piece)
    work.by_rename()
    work.same_name(_alike)
    work.same_values()
    work.in_pieces()
    work.same_values()
    work.nearly_same_values()
    work.beside_others()
    work.same_name(lambda tensor, leaf: tensor.size == leaf.size)
    work.same_name(lambda tensor, leaf: True)
    work.same_place()
    work.nearly_same_values(constants=True)
    work.further_names()
    work.copies()
    return work.pieces()


class _Pairing:
    """Pairs so far, and what is left of each side."""

    def __init__(self, ref: Tensors, port: Tensors, rename: Mapping[str, str]) -> None:
        self._all, self._rename = ref, rename
        self._found: dict[str, list[Piece]] = defaultdict(list)
        self._port = port
        # one of several names is enough for a tensor that modules share
        self._first = {_key(tensor): name for name, tensor in reversed([*ref.items()])}
        self._ref = {name: ref[name] for name in ref if self._first[_key(ref[name])] == name}
        self._leaves = dict(port)
        self._exchanged: set[str] = set()
        self._claimed: set[str] = set()

    def pieces(self) -> list[Piece]:
        """All pieces; `port` is `None` for a tensor without a counterpart."""
        found: list[Piece] = []
        for name, tensor in self._all.items():
            own = self._found.get(name) or self._found.get(self._first[_key(tensor)], [])
            found += own if own and own[0].ref.full_name == name else _called(tensor, own)
        return found

    def add(self, piece: Piece) -> None:
        """Take a piece, whose sides are left no more."""
        self._found[piece.ref.full_name].append(piece)
        self._ref.pop(piece.ref.full_name, None)
        if piece.port is not None:
            self._leaves.pop(piece.port.full_name, None)

    def by_rename(self) -> None:
        """Tensors that `rename` gives another name."""
        for name in [*self._ref]:
            target = renamed(name, self._rename)
            if target != name and target in self._leaves:
                self.add(Piece(self._ref[name], self._leaves[target]))

    def _natural(self, tensor: Tensor) -> list[Tensor]:
        """Leaves that are left with the name that the tensor has in Flax."""
        path = renamed(tensor.path, self._rename)
        names = NAMES.get(tensor.name, (tensor.name,))
        found = (f"{path}.{name}" if path else name for name in names)
        return [self._leaves[name] for name in found if name in self._leaves]

    def same_name(self, fits: Callable[[Tensor, Tensor], bool]) -> None:
        """Pair what is called alike, if it fits."""
        for tensor in [*self._ref.values()]:
            leaf = next((leaf for leaf in self._natural(tensor) if fits(tensor, leaf)), None)
            if leaf is not None:
                self.add(Piece(tensor, leaf))

    def same_values(self) -> None:
        """Whole tensors of the same values.

        What is only exchanged among names stays so, and so does what has the name of a tensor
        whose values are nowhere: both are mistakes.
        """
        owners = Owners(self._leaves.values())
        types = {leaf.read().dtype for leaf in self._leaves.values()}
        narrow = [one for one in types if one.itemsize < 4 and one.kind in "fV"]
        value_of: dict[str, list[Tensor]] = {}
        for name, tensor in self._ref.items():
            values = tensor.read()
            casts = [values, *(values.astype(one) for one in narrow if values.dtype.kind == "f")]
            value_of[name] = [*next(filter(None, map(owners.of, casts)), ())]
        self._exchanged = self._closed(value_of)
        self._claimed = {
            leaf.full_name
            for name in value_of
            if not value_of[name]
            for leaf in self._natural(self._ref[name])
        }
        for name in value_of:
            left = [leaf for leaf in value_of[name] if leaf.full_name in self._leaves]
            left = [leaf for leaf in left if leaf.full_name not in self._claimed]
            if left and name not in self._exchanged:
                leaf = max(left, key=lambda leaf: _likeness(name, leaf.full_name))
                self.add(Piece(self._ref[name], leaf))

    def _closed(self, value_of: Mapping[str, Sequence[Tensor]]) -> set[str]:
        """Tensors whose leaves, by name, hold each other's values: exchanged by mistake."""
        by_name = {name: leaf for name in value_of for leaf in self._natural(self._ref[name])[:1]}
        held = {name: [leaf.full_name for leaf in value_of[name]] for name in by_name}
        found = {name for name in by_name if held[name]}
        while True:
            names = {by_name[name].full_name for name in found}
            values = {leaf for name in found for leaf in held[name]}
            kept = {n for n in found if by_name[n].full_name in values and names & {*held[n]}}
            if kept == found:
                return found
            found = kept

    def in_pieces(self) -> None:
        """Leaves that hold several tensors, and tensors that several leaves hold."""
        for leaf in [*self._leaves.values()]:
            if leaf.full_name in self._leaves and not constant(leaf.read()):
                found = pieces_of(leaf, Owners(self._ref.values()))
                for part, tensor in found:
                    self.add(Piece(tensor, leaf.cut(part)))
                self._fill(leaf, found)
        for tensor in [*self._ref.values()]:
            if not constant(tensor.read()):
                found = pieces_of(tensor, Owners(self._leaves.values()))
                for part, leaf in found:
                    self.add(Piece(tensor.cut(part), leaf))

    def _fill(self, leaf: Tensor, found: Sequence[tuple[TensorPart, Tensor]]) -> None:
        """Pair pieces of a stack that hold nothing known with the tensors that lack one."""
        turns = {part.turn: tensor for part, tensor in found if len(part.spans) == 1}
        if len(turns) != len(found) or None in turns:
            return
        for turn in range(leaf.shape[0] if turns else 0):
            near = min(turns.items(), key=lambda item: abs((item[0] or 0) - turn))[1]
            left = [t for t in self._ref.values() if t.name == near.name and t.size == near.size]
            if turn not in turns and left:
                tensor = max(left, key=lambda one: _likeness(one.full_name, near.full_name))
                self.add(Piece(tensor, leaf.cut(TensorPart(((turn, None),)))))

    def nearly_same_values(self, constants: bool = False) -> None:
        """Whole tensors that agree but for rounding; `constants` are those that are one number."""
        for name, tensor in [*self._ref.items()]:
            values, names = tensor.read(), NAMES.get(tensor.name, (tensor.name,))
            if values.dtype.kind != "f" or constant(values) != constants or name in self._exchanged:
                continue
            for leaf in [*self._leaves.values()]:
                own = leaf.full_name not in self._claimed or leaf in self._natural(tensor)
                fits = (leaf.name in names if constants else own) and leaf.size == tensor.size
                if fits and same_values(values, leaf.read(), CLOSE) is not None:
                    self.add(Piece(tensor, leaf))
                    break

    def further_names(self) -> None:
        """Leaves that are left for further names of tensors that modules share: the port may hold
        such a tensor once for each module.
        """
        firsts = {*self._first.values()}
        self._ref = {name: one for name, one in self._all.items() if name not in firsts}
        self.by_rename()
        self.same_name(_alike)
        self.same_values()
        self.same_name(lambda tensor, leaf: tensor.size == leaf.size)

    def copies(self) -> None:
        """What is held several times, on either side: each tensor with all leaves of its values."""
        port = [leaf for leaf in self._port.values() if leaf.full_name in self._leaves]
        tensors = [one for one in self._all.values() if self._first[_key(one)] not in self._found]
        alike: dict[object, list[Tensor]] = defaultdict(list)
        for name in {*self._first.values()}:
            values = self._all[name].read()
            alike[values.shape, values.flat[:64].tobytes()].append(self._all[name])
        tensors += [one for same in alike.values() if len(same) > 1 for one in same]
        leaves, known = Owners(self._port.values()), Owners(self._all.values())
        pairs = [(one, leaf) for one in tensors for leaf in leaves.of(one.read())]
        pairs += [(one, leaf) for leaf in port for one in known.of(leaf.read())]
        for tensor, leaf in pairs:
            for one in (x for x in self._all.values() if x.path == tensor.path):
                for other in (x for x in self._port.values() if x.path == leaf.path):
                    if other.name in NAMES.get(one.name, (one.name,)) and _alike(one, other):
                        self._add_copy(one, other)

    def _add_copy(self, tensor: Tensor, leaf: Tensor) -> None:
        own = self._found.get(tensor.full_name, ())
        if all(one.port and not one.port.part and one.port is not leaf for one in own):
            self.add(Piece(tensor, leaf))

    def beside_others(self) -> None:
        """Tensors beside one whose leaf is known: in the leaves beside that one, and cut as it is.

        So biases that are all zeros follow their kernels.
        """
        for own in [*self._found.values()]:
            self._split_alike(own)
            for piece in own:
                if piece.port is None:
                    continue
                group = self._together(piece)
                for name in dict.fromkeys(t.name for t in self._ref.values() if _beside(t, group)):
                    tensors = [self._ref.get(_name(one.ref.path, name)) for one in group]
                    if all(tensors):
                        self._cut_alike(group, [tensor for tensor in tensors if tensor])

    def _together(self, piece: Piece) -> list[Piece]:
        """All pieces of the leaf of this one, in their order there."""
        assert piece.port is not None
        found = [
            one
            for own in self._found.values()
            for one in own
            if one.port and one.port.full_name == piece.port.full_name
        ]
        return sorted(found, key=lambda one: _start(one.port))

    def _cut_alike(self, group: Sequence[Piece], tensors: Sequence[Tensor]) -> None:
        """Pair tensors beside those of a group with a leaf beside the group's."""
        port = group[0].port
        assert port is not None
        size = sum(tensor.size for tensor in tensors)
        names = NAMES.get(tensors[0].name, (tensors[0].name,))
        left = [x for x in self._leaves.values() if x.path == port.path and x.size == size]
        left.sort(key=lambda leaf: leaf.name not in names)
        for leaf in left[:1]:
            parts = _cuts(leaf, tensors, [one.port.part if one.port else None for one in group])
            if parts is not None:
                for tensor, part in zip(tensors, parts, strict=True):
                    self.add(Piece(tensor, leaf.cut(part) if part else leaf))

    def _split_alike(self, own: Sequence[Piece]) -> None:
        """Pair tensors beside one that several leaves hold with the leaves beside those."""
        own = sorted(own, key=lambda one: _start(one.ref))
        for tensor in [one for one in self._ref.values() if len(own) > 1 and _beside(one, own)]:
            names = NAMES.get(tensor.name, (tensor.name,))
            ports = [_name(one.port.path, name) for one in own if one.port for name in names]
            leaves = [self._leaves[name] for name in ports if name in self._leaves]
            if len(leaves) == len(own) and sum(leaf.size for leaf in leaves) == tensor.size:
                parts = _cuts(tensor, leaves, [one.ref.part for one in own])
                for leaf, part in zip(leaves, parts or (), strict=False):
                    self.add(Piece(tensor.cut(part) if part else tensor, leaf))

    def same_place(self) -> None:
        """The one leaf of a tensor's size in the module around what is known, or of its name."""
        for tensor in [*self._ref.values()]:
            path = tensor.path
            while tensor.full_name in self._ref:
                place = self._place(path)
                same = [t for t in self._ref.values() if _below(t, path) and t.size == tensor.size]
                leaves = [x for x in self._leaves.values() if _below(x, place)]
                leaves = [leaf for leaf in leaves if leaf.size == tensor.size]
                if leaves and len(leaves) == len(same) and (path or tensor.path == path):
                    pairs = zip(sorted(same, key=_rank), sorted(leaves, key=_rank), strict=True)
                    for one, leaf in pairs:
                        self.add(Piece(one, leaf))
                if leaves or not path:
                    break
                path = path.rpartition(".")[0]

    def _place(self, path: str) -> str:
        """The innermost place in the port of all that is known of what is below a path."""
        known = [
            piece.port.path.split(".")
            for own in self._found.values()
            for piece in own
            if piece.port is not None and _below(piece.ref, path)
        ]
        if not known:
            return renamed(path, self._rename)
        shared = min(map(len, known))
        while any(one[:shared] != known[0][:shared] for one in known):
            shared -= 1
        return ".".join(known[0][:shared])


def _cuts(
    leaf: Tensor, tensors: Sequence[Tensor], known: Sequence[TensorPart | None]
) -> list[TensorPart | None] | None:
    """The piece of the leaf for each tensor, as those of the leaf beside it are `known`: by its
    turn along the first axis, then one behind the other; `None` if they do not fit.
    """
    if len(tensors) == 1:
        return [None]
    if any(part is not None and part.in_turns for part in known):
        return _in_turns(leaf, tensors, known)
    turns = [part.turn if part else None for part in known]
    if None in turns or leaf.shape[0] != len({*turns}):
        return _one_behind_the_other(leaf, tensors)
    found: list[TensorPart | None] = []
    for turn in dict.fromkeys(one for one in turns if one is not None):
        whole = TensorPart(((turn, None),))
        own = [tensor for tensor, one in zip(tensors, turns, strict=True) if one == turn]
        inner = _cuts(leaf.cut(whole), own, [None] * len(own))
        if inner is None:
            return None
        found += [whole.inside(part) if part else whole for part in inner]
    return found


def _in_turns(
    leaf: Tensor, tensors: Sequence[Tensor], known: Sequence[TensorPart | None]
) -> list[TensorPart | None] | None:
    """The same places of each period along the leaf's last axes, which may be several for one."""
    found: list[TensorPart | None] = []
    for tensor, part in zip(tensors, known, strict=True):
        spans = part.spans if part else ()
        places = [span for span in spans if span is not None and len(span) > 2]
        turn = spans[:1] if part and part.turn is not None else ()
        outer, length = leaf.shape[: len(turn)], prod(leaf.shape[len(turn) :])
        if not places or length % places[0][2]:
            return None
        own = TensorPart(
            (*turn, *places), (*outer, length) if (*outer, length) != leaf.shape else ()
        )
        if leaf.cut(own).size != tensor.size:
            return None
        found.append(own)
    return found


def _one_behind_the_other(
    leaf: Tensor, tensors: Sequence[Tensor]
) -> list[TensorPart | None] | None:
    for axis in reversed(range(len(leaf.shape))):
        each = leaf.size // leaf.shape[axis]
        if all(tensor.size % each == 0 for tensor in tensors):
            ends = [int(end) for end in np.cumsum([tensor.size // each for tensor in tensors])]
            spans = zip([0, *ends], ends, strict=False)
            return [TensorPart((*[None] * axis, span)) for span in spans]
    return None


def _called(tensor: Tensor, own: Iterable[Piece]) -> list[Piece]:
    """Pieces of a tensor that was found under another of its names."""
    found = [
        Piece(tensor.cut(one.ref.part) if one.ref.part else tensor, one.port, one.problem)
        for one in own
    ]
    return found or [Piece(tensor, None)]


def _alike(ref: Tensor, port: Tensor) -> bool:
    return ref.size == port.size and same_values(ref.read(), port.read()) is not None


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _beside(tensor: Tensor, group: Sequence[Piece]) -> bool:
    return any(tensor.path == one.ref.path for one in group)


def _below(tensor: Tensor, path: str) -> bool:
    return not path or f"{tensor.full_name}.".startswith(f"{path}.")


def _rank(tensor: Tensor) -> tuple[int, bool]:
    """Sorts tensors as both sides list them: kernels before biases, as they come."""
    return -len(tensor.shape), tensor.name == "bias"


def _start(tensor: Tensor | None) -> tuple[int, ...]:
    """Where a piece begins in its whole."""
    part = tensor.part if tensor else None
    return tuple(span[0] if span else 0 for span in part.spans) if part else ()


def _name(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key(tensor: Tensor) -> int | str:
    return tensor.identity or tensor.full_name
