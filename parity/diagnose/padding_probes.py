"""Padding: amount, side and mode; what is joined in front of an array; the causal side."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from parity.diagnose.probe import (
    CONVOLUTIONS,
    POOLS,
    Trial,
    again,
    all_of,
    as_tuple,
    first_argument,
    probe,
    together_and_alone,
)
from parity.diagnose.replay import Operation

Pairs = list[tuple[int, int]]
"""Padding before and after each axis, the last axis first, as `F.pad` wants it."""

MODES = {"constant": "zeros", "reflect": "reflection", "replicate": "the edge", "circular": "wrap"}


@probe
def pad(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Another amount, side or mode of an explicit padding."""
    for group in together_and_alone(operations, ("pad",)):
        given = group[0].given
        own = list(given["pad"])
        pairs = [(own[i], own[i + 1]) for i in range(0, len(own), 2)]
        mode, value = given.get("mode", "constant"), given.get("value") or 0.0
        for other in _other_pairs(pairs):
            text = f"padding {_flat(other)} instead of {own}"
            cause = _cause(group[0].subject.ndim, pairs, other)
            yield Trial(cause, text, all_of(group, again(pad=_flat(other))))
        for name, text in MODES.items():
            if name != mode or (name == "constant" and value != 0.0):
                change = all_of(group, partial(_padded, mode=name))
                yield Trial("padding", f"{text} instead of {MODES.get(mode, mode)} around", change)
        yield Trial("padding", "no padding", all_of(group, first_argument))


def _padded(op: Operation, mode: str) -> Any:
    return pad_by_index(op.subject, list(op.given["pad"]), mode)


@probe
def padding_of_convolutions(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Another amount, side or mode of the padding of a convolution or a pool."""
    for group in together_and_alone(operations, CONVOLUTIONS):
        pairs = _pairs_of(group[0])
        for other in [*_same(group[0]), *_other_pairs(pairs)]:
            text = f"padding {_flat(other)} instead of {_flat(pairs)} in {group[0].name}"
            cause = _cause(group[0].subject.ndim, pairs, other)
            change = all_of(group, partial(_convolved, pads=_flat(other), mode="constant"))
            yield Trial(cause, text, change)
        for mode, text in MODES.items():
            if mode != "constant" and any(map(any, pairs)):
                change = all_of(group, partial(_convolved, pads=_flat(pairs), mode=mode))
                yield Trial("padding", f"{text} instead of zeros around", change)
    for group in together_and_alone(operations, POOLS):
        for amount in range(3):
            text = f"padding {amount} in {group[0].name}"
            yield Trial("padding", text, all_of(group, again(padding=amount)))


def _pairs_of(op: Operation) -> Pairs:
    kernel, own = op.given["weight"].shape[2:], op.given.get("padding", 0)
    if isinstance(own, str):
        dilation = as_tuple(op.given.get("dilation", 1), len(kernel))
        reach = [d * (k - 1) if own == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        return [(r // 2, r - r // 2) for r in reversed(reach)]
    return [(p, p) for p in reversed(as_tuple(own, len(kernel)))]


def _same(op: Operation) -> list[Pairs]:
    """ "SAME" as XLA has it: it goes by the size, and puts the odd one at the end."""
    kernel = op.given["weight"].shape[2:]
    settings = [as_tuple(op.given.get(name, 1), len(kernel)) for name in ("stride", "dilation")]
    pairs: Pairs = []
    for size, k, s, d in zip(op.subject.shape[2:], kernel, *settings, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        pairs.append((total // 2, total - total // 2))
    return [pairs[::-1]]


def _convolved(op: Operation, pads: Sequence[int], mode: str) -> Any:
    return op.again(input=pad_by_index(op.subject, pads, mode), padding=0)


def pad_by_index(x: torch.Tensor, pads: Sequence[int], mode: str) -> torch.Tensor:
    """`F.pad` for any number of axes in every mode."""
    if mode == "constant":
        return F.pad(x, list(pads))
    for i in range(len(pads) // 2):
        axis, (low, high) = x.ndim - 1 - i, pads[2 * i : 2 * i + 2]
        n = x.shape[axis]
        index = torch.arange(-low, n + high)
        if mode == "replicate":
            index = index.clamp(0, n - 1)
        elif mode == "circular":
            index = index % n
        else:
            index = index.abs()
            index = torch.where(index >= n, 2 * (n - 1) - index, index)
        x = x.index_select(axis, index)
    return x


def _other_pairs(pairs: Pairs) -> list[Pairs]:
    """Other ways to pad: all padded axes alike, one axis at a time, axes swapped."""
    busy = [i for i, pair in enumerate(pairs) if any(pair)]
    found: list[Pairs] = []
    if len(busy) > 1 and len({pairs[i] for i in busy}) == 1:
        for way in _ways(*pairs[busy[0]]):
            found.append([way if i in busy else pair for i, pair in enumerate(pairs)])
    for at in busy:
        for way in _ways(*pairs[at]):
            found.append([way if i == at else pair for i, pair in enumerate(pairs)])
    if len(pairs) > 1:
        found += [[pairs[1], pairs[0], *pairs[2:]], pairs[::-1]]
    return [way for way in found if way != pairs]


def _ways(low: int, high: int) -> Pairs:
    """The other side, the same total split otherwise, one on either side, none, the total twice."""
    total = low + high
    split = [(n, total - n) for n in range(total + 1)]
    ways = [(high, low), *split, (1, 1), (0, 0), (total // 2, total // 2), (total, total)]
    return [way for way in dict.fromkeys(ways) if way != (low, high)]


def _cause(ndim: int, pairs: Pairs, other: Pairs) -> str:
    """`causal_side` where padding goes to another side of the time axis."""
    time = {3: 0, 5: 2}.get(ndim)
    if time is None or time >= len(pairs) or pairs[time] == other[time]:
        return "padding"
    return "causal_side" if sum(pairs[time]) == sum(other[time]) else "padding"


def _flat(pairs: Pairs) -> list[int]:
    return [n for pair in pairs for n in pair]


Joined = Callable[[torch.Tensor, torch.Tensor, int], list[torch.Tensor]]


@probe
def in_front(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Something else joined in front of an array, or a part of it behind."""
    for operation in operations:
        if operation.name not in ("cat", "concat") or len(operation.given["tensors"]) < 2:
            continue
        *fronts, x = operation.given["tensors"]
        timed = x.ndim == 5 and operation.given.get("dim", 0) == 2
        # what an array repeats of itself is its padding, what comes from elsewhere a cache
        storage = x.untyped_storage().data_ptr()
        own = all(front.untyped_storage().data_ptr() == storage for front in fronts)
        for text, make in _FRONTS.items():
            cause = "cache" if timed and not own else "padding"
            yield Trial(cause, f"{text} in front", {operation.place: partial(_cat, make=make)})
        cause = "causal_side" if timed else "reshape_order"
        for text, make in _BEHIND.items():
            yield Trial(cause, text, {operation.place: partial(_cat, make=make)})


def _cat(op: Operation, make: Joined) -> Any:
    axis = op.given.get("dim", 0)
    *fronts, x = op.given["tensors"]
    return torch.cat(make(torch.cat(fronts, axis), x, axis), axis)


def _repeat(x: torch.Tensor, axis: int, at: int, count: int) -> torch.Tensor:
    return x.narrow(axis, at % x.shape[axis], 1).repeat_interleave(count, axis)


def _end(x: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    return x.narrow(axis, x.shape[axis] - count, count)


_FRONTS: dict[str, Joined] = {
    "zeros": lambda front, x, axis: [torch.zeros_like(front), x],
    "the array's own first entry": lambda front, x, axis: [
        _repeat(x, axis, 0, front.shape[axis]),
        x,
    ],
    "the first entry of what is there": lambda front, x, axis: [
        _repeat(front, axis, 0, front.shape[axis]),
        x,
    ],
    "the same in opposite order": lambda front, x, axis: [front.flip(axis), x],
    "the array's own end": lambda front, x, axis: [_end(x, axis, front.shape[axis]), x],
}

_BEHIND: dict[str, Joined] = {
    "joined in opposite order": lambda front, x, axis: [x, front],
    "the last entry repeated behind, nothing in front": lambda front, x, axis: [
        x,
        _repeat(x, axis, -1, front.shape[axis]),
    ],
    "one half in front, the last entry repeated behind": lambda front, x, axis: [
        _end(front, axis, -(-front.shape[axis] // 2)),
        x,
        _repeat(x, axis, -1, front.shape[axis] // 2),
    ],
}
