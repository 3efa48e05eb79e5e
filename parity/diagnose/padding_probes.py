"""Padding: amount, side and mode; what is joined in front of an array; the causal side."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from parity.diagnose.probe import CONVOLUTIONS, TRANSPOSED, Ways, again, as_tuple, probe
from parity.diagnose.replay import Operation

Pairs = list[tuple[int, int]]
"""Padding before and after each axis, the last axis first, as `F.pad` wants it."""

MODES: dict[str, tuple[Any, str]] = {
    "constant": ("constant", "zeros"),
    "reflect": ("reflect", "reflection"),
    "replicate": ("edge", "the edge"),
    "circular": ("wrap", "wrap"),
}
"""By PyTorch's name of a mode, NumPy's, and words."""


@probe("pad")
def pad(op: Operation) -> Ways:
    """Another amount, side or mode of an explicit padding."""
    own, mode = list(op.given["pad"]), op.given.get("mode", "constant")
    pairs = [(own[i], own[i + 1]) for i in range(0, len(own), 2)]
    for other in _other_pairs(pairs):
        text = f"padding {_flat(other)} instead of {own}"
        yield _cause(op.subject.ndim, pairs, other), text, again(pad=_flat(other))
    for name, (_, text) in MODES.items():
        if name != mode or (name == "constant" and op.given.get("value")):
            text = f"{text} instead of {MODES[mode][1]} around"
            yield "padding", text, partial(_padded, pads=own, mode=name)
    yield "padding", "leaving out the padding", again(pad=[0] * len(own))


@probe(*CONVOLUTIONS)
def padding_of_convolutions(op: Operation) -> Ways:
    """Another amount, side or mode of the padding of a convolution."""
    pairs = _pairs_of(op)
    for other in [_same(op), *_other_pairs(pairs)]:
        text = f"padding {_flat(other)} instead of {_flat(pairs)} in {op.name}"
        yield _cause(op.subject.ndim, pairs, other), text, partial(_convolved, pads=_flat(other))
    for mode, (_, text) in MODES.items():
        if mode != "constant" and any(map(any, pairs)):
            change = partial(_convolved, pads=_flat(pairs), mode=mode)
            yield "padding", f"{text} instead of zeros around", change


@probe(*TRANSPOSED)
def cropping(op: Operation) -> Ways:
    """Other ends cut off what a transposed convolution makes too large."""
    size, whole = op.result().shape[2:], again(padding=0, output_padding=0)
    for low in range(whole(op).shape[-1] - size[-1] + 1):
        ends = (..., *(slice(low, low + n) for n in size))
        change = partial(lambda op, ends: whole(op)[ends], ends=ends)
        yield "padding", f"the first {low} cut off in {op.name}", change


def _pairs_of(op: Operation) -> Pairs:
    kernel, own = op.given["weight"].shape[2:], op.given.get("padding", 0)
    if isinstance(own, str):
        dilation = as_tuple(op.given.get("dilation", 1), len(kernel))
        reach = [d * (k - 1) if own == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        return [(r // 2, r - r // 2) for r in reversed(reach)]
    return [(p, p) for p in reversed(as_tuple(own, len(kernel)))]


def _same(op: Operation) -> Pairs:
    """ "SAME" as XLA has it: it goes by the size, and puts the odd one at the end."""
    kernel = op.given["weight"].shape[2:]
    settings = [as_tuple(op.given.get(name, 1), len(kernel)) for name in ("stride", "dilation")]
    pairs: Pairs = []
    for size, k, s, d in zip(op.subject.shape[2:], kernel, *settings, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        pairs.append((total // 2, total - total // 2))
    return pairs[::-1]


def _convolved(op: Operation, pads: Sequence[int], mode: str = "constant") -> Any:
    return op.again(input=_padded(op, pads, mode), padding=0)


def _padded(op: Operation, pads: Sequence[int], mode: str) -> torch.Tensor:
    """`F.pad` for any number of axes in every mode."""
    x = op.subject.detach().numpy()
    widths = [*zip(pads[::2], pads[1::2], strict=True), *[(0, 0)] * x.ndim][: x.ndim]
    padded: torch.Tensor = torch.from_numpy(np.pad(x, widths[::-1], MODES[mode][0]))
    return padded


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


Joined = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]


@probe("cat", "concat", each=True)
def in_front(op: Operation) -> Ways:
    """Something else joined in front of an array, or a part of it behind."""
    *fronts, x = op.given["tensors"]
    if not fronts:
        return
    timed = x.ndim == 5 and op.given.get("dim", 0) == 2
    # what an array repeats of itself is its padding, what comes from elsewhere a cache
    storage = x.untyped_storage().data_ptr()
    own = all(front.untyped_storage().data_ptr() == storage for front in fronts)
    for text, join in _FRONTS.items():
        cause = "cache" if timed and not own else "padding"
        yield cause, f"{text} in front", partial(_joined, join=join)
    for text, join in _BEHIND.items():
        yield "causal_side" if timed else "reshape_order", text, partial(_joined, join=join)


def _joined(op: Operation, join: Joined) -> Any:
    axis = op.given.get("dim", 0)
    *fronts, x = (one.movedim(axis, 0) for one in op.given["tensors"])
    return torch.cat(join(torch.cat(fronts), x)).movedim(0, axis)


_FRONTS: dict[str, Joined] = {
    "zeros": lambda front, x: [torch.zeros_like(front), x],
    "the array's own first entry": lambda front, x: [x[[0] * len(front)], x],
    "the first entry of what is there": lambda front, x: [front[[0] * len(front)], x],
    "the same in opposite order": lambda front, x: [front.flip(0), x],
    "the array's own end": lambda front, x: [x[-len(front) :], x],
}
"""What to join of (frames in front, array), the axis of which is the first."""

_BEHIND: dict[str, Joined] = {
    "joined in opposite order": lambda front, x: [x, front],
    "the last entry repeated behind, nothing in front": lambda front, x: [x, x[[-1] * len(front)]],
    "one half in front, the last entry repeated behind": lambda front, x: [
        front[len(front) // 2 :],
        x,
        x[[-1] * (len(front) // 2)],
    ],
}
