"""Resizing, pooling, and the order of entries; channels that belong together in pairs."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
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
    frames = _frames_resized(op.subject, size).transpose(1, 2)
    image = F.interpolate(frames.flatten(0, 1), size=size[3:], mode=mode, **options)
    return image.reshape(*frames.shape[:2], *image.shape[1:]).transpose(1, 2)


def _frames_resized(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return x.index_select(2, torch.arange(size[2]) * x.shape[2] // size[2])


def _tiled_over(op: Operation, axes: int) -> Any:
    x, size = op.subject, op.result().shape
    if axes == 2 and x.ndim == 5:
        x = _frames_resized(x, size)
    first = max(x.ndim - axes, 2)
    return x.repeat([size[i] // x.shape[i] if i >= first else 1 for i in range(x.ndim)])


@probe(*POOLS)
def pooling(op: Operation) -> Ways:
    """The divisor of a mean, another kind of pooling, or one entry instead of the mean."""
    mean, n = "avg" in op.name, int(op.name[-2])
    window = as_tuple(op.given["kernel_size"], n)
    other = op.name.replace("avg", "max") if mean else op.name.replace("max", "avg")
    yield "pooling", f"{other} instead of {op.name}", partial(_pooled, name=other)
    if mean:
        for flag in (True, False):
            yield "pooling", f"count_include_pad={flag}", again(count_include_pad=flag)
        yield "pooling", "the sum instead of the mean", lambda op: op.result() * math.prod(window)
    for at in range(min(window)):
        yield "pooling", f"entry {at} of each window", partial(_picked, at=at, n=n)


def _pooled(op: Operation, name: str) -> Any:
    shared = ("input", "kernel_size", "stride", "padding", "ceil_mode")
    return getattr(F, name)(**{k: v for k, v in op.given.items() if k in shared})


def _picked(op: Operation, at: int, n: int) -> Any:
    steps = as_tuple(op.given.get("stride") or op.given["kernel_size"], n)
    index: tuple[Any, ...] = (..., *(slice(at, None, step) for step in steps))
    return op.subject[index].clone()


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
        ):
            text = f"{text} instead of the last {count}"
            yield cause, text, partial(_entries, axis=axis, entries=entries)


def _entries(op: Operation, axis: int, entries: Iterable[int]) -> Any:
    return op.subject.index_select(axis, torch.tensor([*entries]) % op.subject.shape[axis])


MOVES = ("permute", "transpose", "swapaxes", "movedim", "moveaxis")
SHAPES = ("reshape", "view", "flatten", "unflatten")
PARTS = ("chunk", "split", "tensor_split")


@probe(*SHAPES, *MOVES, *PARTS, "pixel_shuffle", each=True)
def reshape_order(op: Operation) -> Ways:
    """The same values in another order: channel-last memory read as channel-first, and the like."""
    ways: tuple[tuple[Sequence[str], str, Change], ...] = (
        ((*SHAPES, *MOVES), "{} of the channel-last array", _flattened),
        ((*SHAPES, *MOVES), "{} into a channel-last array", _unflattened),
        (MOVES, "a reshape instead of {}", lambda op: op.subject.reshape(op.result().shape)),
        (MOVES, "a reshape of the channel-last array instead of {}", _reshaped_last),
        (MOVES, "no {}", first_argument),
        (PARTS, "the parts of {} in opposite order", lambda op: tuple(op.result())[::-1]),
        (["pixel_shuffle"], "the other order of channels in {}", _shuffled),
    )
    for names, text, change in ways:
        if op.name in names:
            yield "reshape_order", text.format(op.name), change


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
    x, r = op.subject, op.result().shape[-1] // op.subject.shape[-1]
    blocks = x.reshape(x.shape[0], r * r, -1, *x.shape[2:])
    return op.function(blocks.transpose(1, 2).flatten(1, 2), r)


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
