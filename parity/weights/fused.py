"""Tensors that the two sides hold in another number of arrays: `Fused` and `Stacked`, in pieces."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.core.exceptions import InputError
from parity.core.globs import captured, renamed
from parity.core.tensors import Array, Fused, Stacked, Tensor, TensorPart

Rule = Fused | Stacked


@dataclass(frozen=True)
class Piece:
    """A tensor of the reference and a leaf of the port, or the parts of them that belong together.

    `problem` says why they cannot be compared, `""` if they can; `port` is `None` if the port has
    no such leaf.
    """

    ref: Tensor
    port: Tensor | None
    problem: str = ""


def pieces(
    rules: Sequence[Rule], ref: Mapping[str, Tensor], port: Mapping[str, Tensor]
) -> tuple[Piece, ...]:
    """Pair what the rules say belongs together; both sides' tensors are given by full name.

    A rule that matches no tensor says nothing: configurations of a model differ.

    Raises:
        InputError: two rules name one tensor, or a rule's axis is none of the array's.
    """
    found: list[Piece] = []
    taken: dict[str, Rule] = {}
    for rule in rules:
        belong = _joined if isinstance(rule.into, str) else _split
        new = list(belong(rule, ref, port))
        for name in dict.fromkeys(piece.ref.full_name for piece in new):
            if name in taken:
                raise InputError(f"weights: {name} is in {taken[name]} and {rule}; drop one")
            taken[name] = rule
        found += new
    return tuple(found)


def in_rules(name: str, rules: Sequence[Rule]) -> bool:
    """True if one of the rules says where the tensor is."""
    return any(captured(glob, name) is not None for rule in rules for glob in rule.globs)


def _joined(rule: Rule, ref: Mapping[str, Tensor], port: Mapping[str, Tensor]) -> Iterator[Piece]:
    """Several tensors of the reference in one leaf of the port."""
    assert isinstance(rule.into, str)
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for glob in rule.globs:
        for name, tensor in ref.items():
            if captured(glob, name) is not None:
                groups[renamed(name, {glob: rule.into})].setdefault(name, tensor)
    for target, group in groups.items():
        parts = list(group.values())
        leaf = port.get(target)
        if leaf is None:
            for part in parts:
                yield Piece(part, None, f"the port has no `{target}` to hold it")
            continue
        cut = _cut(rule, leaf, [part.size for part in parts])
        if cut is None:
            what = " and ".join(f"`{part.full_name}` {part.shape}" for part in parts)
            problem = f"`{target}` {leaf.shape} does not hold {what} along axis {rule.axis}"
            yield from (Piece(part, leaf, problem) for part in parts)
        else:
            yield from map(Piece, parts, cut)


def _split(rule: Rule, ref: Mapping[str, Tensor], port: Mapping[str, Tensor]) -> Iterator[Piece]:
    """One tensor of the reference in several leaves of the port."""
    for glob in rule.globs:
        for name, tensor in ref.items():
            if captured(glob, name) is None:
                continue
            targets = [renamed(name, {glob: target}) for target in rule.into]
            leaves = [port[target] for target in targets if target in port]
            for target in targets:
                if target not in port:
                    yield Piece(tensor, None, f"the port has no `{target}` for its part")
            cut = _cut(rule, tensor, [leaf.size for leaf in leaves])
            if len(leaves) == len(targets) and cut is not None:
                yield from map(Piece, cut, leaves)
            elif len(leaves) == len(targets):
                what = " and ".join(f"`{leaf.full_name}` {leaf.shape}" for leaf in leaves)
                problem = f"{tensor.shape} does not make up {what} along axis {rule.axis}"
                yield from (Piece(tensor, leaf, problem) for leaf in leaves)


def _cut(rule: Rule, whole: Tensor, sizes: Sequence[int]) -> list[Tensor] | None:
    """The parts of an array, of these sizes, along the rule's axis; `None` if they do not fit."""
    rank = len(whole.shape)
    if not -rank <= rule.axis < rank:
        raise InputError(f"{rule}: `{whole.full_name}` {whole.shape} has no axis {rule.axis}")
    axis = rule.axis % rank
    length = whole.shape[axis]
    each = whole.size // max(length, 1)
    ends = np.cumsum([size / each if each else 0 for size in sizes])
    whole_numbers = all(end == int(end) for end in ends)
    if not whole_numbers or not sizes or ends[-1] != length:
        return None
    if isinstance(rule, Stacked) and (len(sizes) != length or len(set(sizes)) != 1):
        return None
    starts = [0, *map(int, ends[:-1])]
    return [
        _part(whole, TensorPart(axis, start, None if isinstance(rule, Stacked) else int(end)))
        for start, end in zip(starts, ends, strict=True)
    ]


def _part(whole: Tensor, part: TensorPart) -> Tensor:
    def read() -> Array:
        return np.asarray(whole.read()[part.index])

    middle = () if part.stop is None else (part.stop - part.start,)
    shape = (*whole.shape[: part.axis], *middle, *whole.shape[part.axis + 1 :])
    return replace(whole, shape=shape, read=read, part=part)
