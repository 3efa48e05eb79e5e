"""Attention among the operations of a call, found by what flows into what, and taken apart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from parity.diagnose.probe import PRODUCTS
from parity.diagnose.replay import Change, Operation

HIDDEN = -9e3
"""Scores from here down are those of a mask."""

OF_TWO = ("matmul", "bmm", "einsum")
"""Products that may be of two arrays which the call makes."""

Function = Callable[[torch.Tensor], torch.Tensor]


class Flow:
    """The operations of a call by place, and for each tensor of each the place of its maker."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = {op.place: op for op in operations}
        self.makers: dict[int, list[int | None]] = {}
        makers: dict[int, int] = {}
        for op in operations:
            self.makers[op.place] = [makers.get(id(x)) for x in tensors_of(op)]
            for made in tensors([op.args[0] if op.name == "setitem" else op.made]):
                makers[id(made)] = op.place

    def above(self, *places: int, stop: Sequence[str] = ()) -> set[int]:
        """The operations that these come from, themselves too, up to those of the names `stop`."""
        found, left = set(places), list(places)
        while left:
            new = {maker for maker in self.makers[left.pop()] if maker is not None} - found
            found |= new
            left += (place for place in new if self.operations[place].name not in stop)
        return found


def names(flow: Flow) -> tuple[Callable[[str, Mapping[int, Change]], str], set[int]]:
    """A function that tells the cause of changes in an attention from what they are elsewhere, and
    the places of all attention.

    Orders count from the products before it to those after it, factors from scores to softmax.
    """
    moves, scores, ends = set[int](), set[int](), PRODUCTS
    for one in attentions(flow):
        first, last = one.scores.op.place, one.values.op.place
        given = (*flow.makers[first], flow.makers[last][1])
        moves |= {first, last}
        moves |= flow.above(*(maker for maker in given if maker is not None), stop=ends)
        later = (place for place in flow.operations if place > last)
        moves |= {place for place in later if last in flow.above(place, stop=ends)}
        scores |= {first, *(op.place for op, _ in one.spine[:-1])}

    def named(cause: str, changes: Mapping[int, Change]) -> str:
        if cause == "reshape_order" and moves.issuperset(changes):
            return "attention_heads"
        if cause == "scale_or_offset" and scores.issuperset(changes):
            return "attention_scale"
        return cause

    return named, moves | scores


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested arguments."""
    return [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]


def tensors_of(op: Operation) -> list[torch.Tensor]:
    """The tensors that an operation is given."""
    return tensors((op.args, dict(op.kwargs)))


def with_tensors(op: Operation, changed: Mapping[int, torch.Tensor]) -> Any:
    """The result of an operation that is given other tensors, by position among its tensors."""
    flat, form = tree_flatten((op.args, dict(op.kwargs)))
    at = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    for i, tensor in changed.items():
        flat[at[i]] = tensor
    args, kwargs = tree_unflatten(flat, form)
    return op.function(*args, **kwargs)


def put(op: Operation, value: torch.Tensor) -> torch.Tensor | None:
    """The value as the result of an operation, which may be one in place."""
    if op.name.endswith("_") or op.name in ("iadd", "isub", "imul", "itruediv", "setitem"):
        written = op.subject.copy_(value)
        return None if op.name == "setitem" else written
    return value


def short(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Values rounded to a shorter type."""
    return x.to(getattr(torch, kind)).to(x.dtype)


@dataclass(frozen=True)
class Product:
    """A product of two arrays.

    `axes` put the axes of both, and of the result, in the order of matmul: heads first, then
    (rows, columns). In an einsum they may lie anywhere.
    """

    op: Operation
    axes: tuple[Sequence[int], Sequence[int], Sequence[int]]

    def change(self, left: Function | None, right: Function | None, out: Function | None) -> Change:
        """The product with both factors and the result changed, axes as in matmul."""

        def changed(op: Operation) -> Any:
            given = tensors_of(op)
            ways = enumerate((left, right))
            new = {i: self.seen(given[i], i, f) for i, f in ways if f}
            made = with_tensors(op, new)
            return self.seen(made, 2, out) if out else made

        return changed

    def seen(self, x: torch.Tensor, which: int, function: Function) -> torch.Tensor:
        """One of the three arrays changed by a function that sees it as matmul would."""
        axes = self.axes[which]
        return function(x.permute(*axes)).permute(*(axes.index(i) for i in range(len(axes))))

    def factor(self, which: int) -> torch.Tensor:
        """A factor, as matmul would be given it."""
        return tensors_of(self.op)[which].permute(*self.axes[which])


def product(op: Operation) -> Product | None:
    """What an operation multiplies, if it is a product of two arrays."""
    given = tensors_of(op)
    if op.name not in OF_TWO or len(given) != 2:
        return None
    if op.name != "einsum":
        ndims = given[0].ndim, given[1].ndim, op.made.ndim
        a, b, c = (range(n) for n in ndims)
        return Product(op, (a, b, c)) if min(ndims) > 1 else None
    equation = op.args[0].replace(" ", "")
    if equation.count("->") != 1 or equation.count(",") != 1:
        return None
    parts = equation.replace("->", ",").split(",")
    shapes = zip(parts, (*given, op.made), strict=True)
    a, b, c = (
        part.replace("...", "ABCDEFGH"[: x.ndim - len(part) + 3]) if "." in part else part
        for part, x in shapes
    )
    heads = [x for x in c if x in a and x in b]
    rows = [x for x in c if x in a and x not in b]
    inner, columns = [x for x in a if x not in c], [x for x in c if x not in a]
    try:
        axes = (
            [a.index(x) for x in (*heads, *rows, *inner)],
            [b.index(x) for x in (*heads, *inner, *columns)],
            [c.index(x) for x in (*heads, *rows, *columns)],
        )
    except ValueError:
        return None
    whole = all(len(x) == len(y) for x, y in zip(axes, (a, b, c), strict=True))
    return Product(op, axes) if whole and len(inner) == len(columns) == 1 else None


@dataclass(frozen=True)
class Attention:
    """A product whose softmax is a factor of another product.

    `spine` are the operations from the scores to the softmax, each with the position of the scores
    among its tensors.
    """

    scores: Product
    spine: Sequence[tuple[Operation, int]]
    softmax: Operation
    values: Product

    def changes(self, **ways: Function) -> Mapping[int, Change]:
        """Changes of `q`, `k` (its axes as those of `v`), `v` and `out`, axes as in matmul."""
        k = ways.get("k")
        right = (lambda x: k(x.mT).mT) if k else None
        found = {}
        if "q" in ways or k:
            found[self.scores.op.place] = self.scores.change(ways.get("q"), right, None)
        if "v" in ways or "out" in ways:
            change = self.values.change(None, ways.get("v"), ways.get("out"))
            found[self.values.op.place] = change
        return found

    @property
    def factors(self) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, each with positions before features."""
        return self.scores.factor(0), self.scores.factor(1).mT, self.values.factor(1)


def attentions(flow: Flow) -> Iterator[Attention]:
    """All attention among the operations."""
    for op in flow.operations.values():
        if op.name != "softmax":
            continue
        spine = _spine(flow, op)
        scores = product(spine.pop()[0]) if spine else None
        for later in flow.operations.values():
            values = product(later) if later.place > op.place else None
            if values and op.place in flow.above(later.place):
                if scores:
                    yield Attention(scores, spine[::-1], op, values)
                break


def _spine(flow: Flow, softmax: Operation) -> list[tuple[Operation, int]]:
    """The operations from a softmax back to the product that it is of, with what is followed."""
    found, op = [(softmax, 0)], softmax
    while op.name not in OF_TWO:
        for at, maker in enumerate(flow.makers[op.place]):
            if maker is not None and any(
                flow.operations[place].name in OF_TWO for place in flow.above(maker)
            ):
                op = flow.operations[maker]
                found.append((op, 0))
                found[-2] = (found[-2][0], at)
                break
        else:
            return []
    return found
