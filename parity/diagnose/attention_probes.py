"""Attention: its scale, its mask, what are heads, queries, keys and values, and its precision."""

import functools
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from parity.diagnose.attention import (
    HIDDEN,
    Attention,
    Flow,
    Function,
    attentions,
    put,
    short,
    tensors_of,
)
from parity.diagnose.probe import Probe, Trial, probe_of_flow
from parity.diagnose.replay import Change, Operation

Changes = Mapping[int, Change]
Ways = Iterator[tuple[str, str, Changes]]


def attention_probe(function: Callable[[Attention], Ways]) -> Probe:
    """Register a probe of attention: its changes are tried in all of a call, and then in each."""

    @functools.wraps(function)
    def trials(operations: Sequence[Operation]) -> Iterator[Trial]:
        found = list(attentions(Flow(operations)))[:6]
        for group in [found] * bool(found) + [[one] for one in found] * (len(found) > 1):
            for ways in zip(*map(function, group), strict=False):
                cause, text, _ = ways[0]
                if all(other[1] == text for other in ways):
                    yield Trial(cause, text, dict(ChainMap(*(dict(way[2]) for way in ways))))

    return probe_of_flow(trials)


@attention_probe
def scale(attention: Attention) -> Ways:
    """Scores multiplied by another number."""
    for power in (0.5, -0.5, 1.0, -1.0):
        factor = attention.factors[0].shape[-1] ** power
        text = f"scores times {factor:g}, the size of a head to the power {power:g},"
        change = partial(lambda op, by: op.result() * by, by=factor)
        yield "attention_scale", text, {attention.scores.op.place: change}


@attention_probe
def mask(attention: Attention) -> Ways:
    """Another mask, or none."""
    op, at = _masking(attention)
    hidden = op.made <= HIDDEN if op is not attention.softmax else tensors_of(op)[at] <= HIDDEN
    for text, seen in _masks(~hidden):
        if not torch.equal(seen, ~hidden):
            for fill, more in ((-1e30, ""), (0.0, " with zeros as the scores of the others")):
                change = partial(_masked, at=at, hidden=~seen, fill=fill)
                yield "attention_mask", text + more, {op.place: change}


def _masking(attention: Attention) -> tuple[Operation, int]:
    """The last operation that masks scores, else the softmax."""
    steps = [(attention.scores.op, -1), *attention.spine]
    for op, at in steps[-2::-1]:
        if op.name.strip("_") in ("masked_fill", "where", "setitem") or any(
            i != at and bool((x <= HIDDEN).any()) for i, x in enumerate(tensors_of(op))
        ):
            return op, at
    return steps[-1]


def _masked(op: Operation, at: int, hidden: torch.Tensor, fill: float) -> Any:
    """The scores masked so instead."""
    scores = tensors_of(op)[at].masked_fill(hidden, fill)
    return op.again(**{next(iter(op.given)): scores}) if op.name == "softmax" else put(op, scores)


def _masks(seen: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """What may be seen instead, by row and column."""
    rows, columns = seen.shape[-2:]
    causal = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows).expand_as(seen)
    yield "leaving out the mask", torch.ones_like(seen)
    yield "a causal mask", causal
    yield "a causal mask besides", seen & causal
    yield "leaving out the causal mask besides", seen.any(-2, keepdim=True).expand_as(seen)
    yield "the mask inverted", ~seen
    if rows == columns:
        yield "the mask transposed", seen.mT
    for axis, step in product((-1, -2), (1, -1)):
        n = seen.shape[axis]
        moved = seen.index_select(axis, (torch.arange(n) - step).clamp(0, n - 1))
        along = f"the mask moved by {step} along its {'columns' if axis == -1 else 'rows'}"
        yield along, moved
        yield f"{along}, and what was seen before", moved | seen
        yield f"{along}, where it was seen before", moved & seen


@attention_probe
def heads(attention: Attention) -> Ways:
    """Queries, keys and values exchanged, heads in another order, heads for positions."""
    q, k, v = attention.factors

    def ways(text: str, **changes: Function) -> tuple[str, str, Changes]:
        return "attention_heads", text, attention.changes(**changes)

    if q.shape == k.shape:
        yield ways("queries and keys exchanged", q=lambda _: k, k=lambda _: q)
    if k.shape == v.shape:
        yield ways("keys and values exchanged", k=lambda _: v, v=lambda _: k)
    if q.shape == v.shape:
        yield ways("queries and values exchanged", q=lambda _: v, v=lambda _: q)
    if min(x.ndim for x in (q, k, v)) < 3:
        return
    names: dict[str, str] = {"queries": "q", "keys": "k", "values": "v"}
    count = q.shape[-3]
    merged = range(4, count) if q.ndim == 3 else ()  # items and their heads along one axis
    for own in (count, *(size for size in merged if count % size == 0)):
        for n in (n for n in range(2, own) if own % n == 0):
            order = torch.arange(count).reshape(-1, n, own // n).mT.flatten()
            change = partial(torch.index_select, dim=-3, index=order)
            for text, which in {**names, "keys and values": "kv"}.items():
                text = f"head h of {text} from group h % {n} instead of h // {own // n}"
                yield ways(text, **dict.fromkeys(which, change))
    for text, which in {**names, "all of them": "qkv"}.items():
        text = f"heads and positions of {text} in the other order in a reshape"
        yield ways(text, **dict.fromkeys(which, _reread))
    yield ways("heads and positions of the result in the other order in a reshape", out=_reread_out)
    whole: dict[str, Function] = dict.fromkeys("qkv", _reread)
    yield ways("heads and positions in the other order in all reshapes", **whole, out=_reread_out)
    yield ways(
        "heads in the place of positions",
        **dict.fromkeys(("q", "k", "v", "out"), partial(torch.transpose, dim0=-3, dim1=-2)),
    )


def _reread(x: torch.Tensor) -> torch.Tensor:
    """Memory of (position, head) read as (head, position)."""
    return x.transpose(-3, -2).reshape(x.shape)


def _reread_out(x: torch.Tensor) -> torch.Tensor:
    """Memory of (head, position) read as (position, head)."""
    return x.reshape(x.transpose(-3, -2).shape).transpose(-3, -2)


@attention_probe
def precision(attention: Attention) -> Ways:
    """Scores, or their softmax, in a shorter type."""
    for kind in ("bfloat16", "float16"):
        low = partial(short, kind=kind)
        for text, one in {"scores": attention.scores, "sums of values": attention.values}.items():
            yield "dtype", f"{text} in {kind}", {one.op.place: one.change(low, low, low)}
