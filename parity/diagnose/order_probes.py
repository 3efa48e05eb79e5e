"""Resizing, pooling, and the order of entries; channels that belong together in pairs."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
import torch.nn.functional as F

from parity.diagnose.probe import (
    POOLS,
    Trial,
    Ways,
    again,
    as_tuple,
    first_argument,
    probe,
    probe_of_all,
)
from parity.diagnose.replay import Change, Operation


@probe("interpolate", "upsample")
def resize(op: Operation) -> Ways:
    """Another interpolation, over all axes or over those of the image only."""
    for mode in ("nearest", "nearest-exact", "area"):
        yield "resize", f"mode={mode}", partial(_resized, mode=mode)
    for corners in (False, True):
        change = partial(_resized, mode="linear", align_corners=corners)
        yield "resize", f"linear over all axes, align_corners={corners}", change
        for mode, smooth in itertools.product(("bilinear", "bicubic"), (False, True)):
            options: dict[str, Any] = {"align_corners": corners, "antialias": smooth}
            text = f"mode={mode}, align_corners={corners}, antialias={smooth}"
            yield "resize", text, partial(_image_resized, mode=mode, **options)
    for text, axes in (("rows and columns", 2), ("everything", 3)):
        text = f"{text} repeated as a whole instead of entry by entry"
        yield "reshape_order", text, partial(_tiled_over, axes=axes)


def _resized(op: Operation, mode: str, **options: Any) -> Any:
    own = ("mode", "align_corners", "antialias")
    if mode == "linear":
        mode = {3: "linear", 4: "bilinear", 5: "trilinear"}[op.subject.ndim]
    return F.interpolate(
        **{k: v for k, v in op.given.items() if k not in own}, mode=mode, **options
    )


def _image_resized(op: Operation, mode: str, **options: Any) -> Any:
    """The last two axes so; the one before them, if there is one, as it was."""
    if op.subject.ndim != 5:
        return _resized(op, mode, **options)
    size = op.result().shape
    frames = _repeated(op.subject, size[:3]).transpose(1, 2)
    image = F.interpolate(frames.flatten(0, 1), size=size[3:], mode=mode, **options)
    return image.reshape(*frames.shape[:2], *image.shape[1:]).transpose(1, 2)


def _tiled_over(op: Operation, axes: int) -> Any:
    n = op.subject.ndim
    return _repeated(op.subject, op.result().shape, range(max(n - axes, 2), n))


def _repeated(x: torch.Tensor, size: Sequence[int], whole: Sequence[int] = ()) -> torch.Tensor:
    """The entries repeated up to this size, and along the axes `whole` the array as a whole."""
    for axis, n in enumerate(size):
        at, own = torch.arange(n), x.shape[axis]
        x = x.index_select(axis, at % own if axis in whole else at * own // n)
    return x


@probe(*POOLS)
def pooling(op: Operation) -> Ways:
    """Other divisors or kinds of pooling, one entry instead of the mean, another padding."""
    mean, n = "avg" in op.name, int(op.name[-2])
    window = as_tuple(op.given["kernel_size"], n)
    other = op.name.replace("avg", "max") if mean else op.name.replace("max", "avg")
    yield "pooling", f"{other} instead of {op.name}", partial(_pooled, name=other)
    flags = ("ceil_mode", "count_include_pad")[: 1 + mean]
    for name, flag in itertools.product(flags, (True, False)):
        yield "pooling", f"{name}={flag}", again(**{name: flag})
    if mean:
        yield "pooling", "the sum instead of the mean", lambda op: op.result() * math.prod(window)
    steps = as_tuple(op.given.get("stride") or window, n)
    for at in range(min(window)):
        index = (..., *(slice(at, None, step) for step in steps))
        change = partial(lambda op, index: op.subject[index].clone(), index=index)
        yield "pooling", f"entry {at} of each window", change
    sizes = zip(op.subject.shape[-n:], window, steps, strict=True)
    same = [max(k - step + -size % step, 0) for size, k, step in sizes]  # as XLA's "SAME" has it
    ways = [[end for total in same[::-1] for end in (total // 2, total - total // 2)]]
    ways += [[*ends] * n for ends in itertools.product(range(3), repeat=2)]
    for pad, fill in itertools.product(ways, (0.0, -math.inf)[: 2 - mean]):
        padded = partial(F.pad, pad=pad, value=fill)
        change = partial(lambda op, by: op.again(input=by(op.subject), padding=0), by=padded)
        yield "padding", f"padding {pad} with {fill:g} in {op.name}", change


def _pooled(op: Operation, name: str) -> Any:
    shared = ("input", "kernel_size", "stride", "padding", "ceil_mode")
    return getattr(F, name)(**{k: v for k, v in op.given.items() if k in shared})


@probe(*(f"adaptive_{pool}" for pool in POOLS))
def adaptive_pooling(op: Operation) -> Ways:
    """Windows of one size, where PyTorch has bins that may overlap, or another kind of pooling."""
    for kind, more in itertools.product(("avg", "max"), (0, 1)):
        text = f"{kind} over windows of size // bins, with {more} of the rest"
        yield "pooling", text, partial(_even, pool=f"{kind}{op.name[12:]}", more=more)


def _even(op: Operation, pool: str, more: int) -> Any:
    bins = op.result().shape[-int(pool[-2]) :]
    sizes = zip(op.subject.shape[-len(bins) :], bins, strict=True)
    parts = [divmod(size, count) for size, count in sizes]
    windows, steps = [step + more * rest for step, rest in parts], [step for step, _ in parts]
    return getattr(F, pool)(op.subject, windows, steps)[(..., *map(slice, bins))]


@probe("getitem", each=True)
def slices(op: Operation) -> Ways:
    """The first entries instead of the last, or entries one earlier."""
    index = op.args[1] if len(op.args) > 1 else None
    if not isinstance(index, tuple) or ... in index:
        return
    for axis, part in enumerate(index):
        if not (isinstance(part, slice) and part.stop is None and (part.start or 0) < 0):
            continue
        count = -part.start
        cause = "cache" if op.subject.ndim == 5 and axis == 2 else "glue"
        for text, entries in (
            (f"the first {count} entries of axis {axis}", range(count)),
            (f"entries of axis {axis} one earlier", range(-count - 1, -1)),
            (f"the first entry of axis {axis} repeated", [0] * count),
            (f"the last entry of axis {axis} repeated", [-1] * count),
        ):
            text = f"{text} instead of the last {count}"
            yield cause, text, partial(_entries, axis=axis, entries=entries)


def _entries(op: Operation, axis: int, entries: Iterable[int]) -> Any:
    return op.subject.index_select(axis, torch.tensor([*entries]) % op.subject.shape[axis])


MOVES = ("permute", "transpose", "swapaxes", "movedim", "moveaxis")
SHAPES = ("reshape", "view", "flatten", "unflatten")
PARTS = ("chunk", "split", "tensor_split", "unbind")
REPEATS = ("repeat_interleave", "repeat", "tile")
SHUFFLES = ("pixel_shuffle", "pixel_unshuffle")


@probe(*SHAPES, *MOVES, *PARTS, *REPEATS, *SHUFFLES, "glu", each=True)
def reshape_order(op: Operation) -> Ways:
    """The same values in another order: channel-last memory read as channel-first, and the like."""
    ways: tuple[tuple[Sequence[str], str, Change], ...] = (
        ((*SHAPES, *MOVES), "{} of the channel-last array", _flattened),
        ((*SHAPES, *MOVES), "{} into a channel-last array", _unflattened),
        (MOVES, "a reshape instead of {}", lambda op: op.subject.reshape(op.result().shape)),
        (MOVES, "a reshape of the channel-last array instead of {}", _reshaped_last),
        (MOVES, "no {}", first_argument),
        (REPEATS, "whole arrays repeated for entries, or entries for arrays, in {}", _other_repeat),
        (SHUFFLES, "the other order of channels in {}", _shuffled),
        (["glu"], "the other half as the gate of {}", _other_gate),
    )
    for names, text, change in ways:
        if op.name in names:
            yield "reshape_order", text.format(op.name), change
    x, y = op.subject, op.result()
    if op.name in PARTS:
        for order in _orders(len(y)):
            change = partial(lambda op, order: itemgetter(*order)(op.result()), order=order)
            yield "reshape_order", f"the parts of {op.name} in order {tuple(order)}", change
    elif op.name in SHAPES:
        for a in range(max(x.ndim, y.ndim) - 1 if x.ndim != y.ndim else 0):
            text = f"{op.name} with axes {a} and {a + 1} in the other order"
            yield "reshape_order", text, partial(_exchanged, a=a, b=a + 1)


def _orders(n: int) -> Iterable[Sequence[int]]:
    """All orders of few parts; of many those with two exchanged, in one half or in both."""
    if n < 5:
        return itertools.permutations(range(n))
    pairs = [(a, b, h) for h in (0, n // 2) for a, b in itertools.combinations(range(n - h), 2)]
    ways = [{a: b, b: a, a + h: b + h, b + h: a + h} for a, b, h in pairs]
    return [[way.get(i, i) for i in range(n)] for way in ways]


def _exchanged(op: Operation, a: int, b: int) -> Any:
    """Two neighbouring axes exchanged before they are merged, or one split into them otherwise."""
    x, y = op.subject, op.result()
    if x.ndim > y.ndim:
        return x.transpose(a, b).reshape(y.shape)
    return x.reshape(y.transpose(a, b).shape).transpose(a, b)


@probe_of_all
def there_and_back(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Reshapes of the channel-last array instead of two moves of axes."""
    moves = [operation for operation in operations if operation.name in MOVES][:6]
    for there, back in itertools.combinations(moves, 2):
        changes = {there.place: _reshaped_last, back.place: _reshaped_back}
        text = "reshapes of the channel-last array instead of moving axes there and back"
        yield Trial("reshape_order", text, changes)


def _flattened(op: Operation) -> Any:
    return op.subject.movedim(1, -1).reshape(op.result().shape)


def _unflattened(op: Operation) -> Any:
    shape = op.result().shape
    return op.subject.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def _reshaped_last(op: Operation) -> Any:
    """As if both sides kept the channel last, and the move were left out before a reshape."""
    return _reshaped_between(op, 1, _moved_from(op).index(1))


def _reshaped_back(op: Operation) -> Any:
    """The same of a move that brings the channel to axis 1."""
    return _reshaped_between(op, _moved_from(op)[1], 1)


def _moved_from(op: Operation) -> list[int]:
    """The axes of the input in the order in which the operation puts them."""
    sizes = torch.empty(tuple(range(op.subject.ndim)))
    return list(op.function(sizes, *op.args[1:], **op.kwargs).shape)


def _reshaped_between(op: Operation, channel: int, to: int) -> Any:
    last = op.result().movedim(to, -1).shape
    return op.subject.movedim(channel, -1).reshape(last).movedim(-1, to)


def _shuffled(op: Operation) -> Any:
    """Channels as (block, channel), as TensorFlow's depth-to-space has them."""
    x, y = op.subject, op.result()
    z, inner = (x, y.shape[1]) if op.name == "pixel_shuffle" else (y, y.shape[1] // x.shape[1])
    z = z.reshape(len(z), -1, inner, *z.shape[2:]).transpose(1, 2).flatten(1, 2)
    return op.again(input=z) if op.name == "pixel_shuffle" else z


def _other_repeat(op: Operation) -> Any:
    x, size = op.subject, op.result().shape
    x = x.flatten() if len(size) < x.ndim else x[(None,) * (len(size) - x.ndim)]
    return _repeated(x, size, range(len(size)) if op.name == "repeat_interleave" else ())


def _other_gate(op: Operation) -> Any:
    axis = op.given.get("dim", -1)
    return op.again(input=op.subject.roll(op.subject.shape[axis] // 2, axis))


def _half_of(which: int) -> Change:
    return lambda op: op.subject.chunk(2, -1)[which].clone()


def _every_other(first: int) -> Change:
    return lambda op: op.subject[..., first::2].clone()


def _stacked(op: Operation, axis: int) -> torch.Tensor:
    first, second = op.args[0]
    return torch.stack((first, second), axis)


PICKED = [(_half_of(which), _every_other(which)) for which in (0, 1)]
APART = (lambda op: op.subject.chunk(2, -1), lambda op: tuple(new(op) for _, new in PICKED))
TOGETHER = (lambda op: _stacked(op, -2).flatten(-2), lambda op: _stacked(op, -1).flatten(-2))
STACKED = (lambda op: _stacked(op, -1), lambda op: _stacked(op, -2))
"""What an operation does with two parts of the last axis, and the same of the other two parts."""

WAYS: dict[str, Sequence[tuple[Change, Change]]] = {
    "their neighbours instead of those of the other half": (*PICKED, APART, TOGETHER),
    "those of the other half instead of their neighbours": (
        *((new, own) for own, new in PICKED),
        STACKED,
    ),
}


@probe_of_all
def pairs(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Neighbouring channels instead of those of two halves, as a rotary embedding pairs them."""
    names = ("getitem", "chunk", "cat", "concat", "stack")
    found = [operation for operation in operations if operation.name in names]
    for text, ways in WAYS.items():
        changes = {op.place: new for op in found for own, new in ways if _does(op, own)}
        if len(changes) > 1:  # taken apart and put together again
            yield Trial("reshape_order", f"channels paired with {text}", changes)


def _does(operation: Operation, own: Change) -> bool:
    """True if the operation returns this."""
    try:
        found, wanted = _parts(operation.result()), _parts(own(operation))
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError):
        return False  # it takes something else
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def _parts(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
