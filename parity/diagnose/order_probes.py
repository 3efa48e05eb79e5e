"""Resizing, pooling, and the order of entries."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from parity.diagnose.probe import (
    POOLS,
    Trial,
    again,
    all_of,
    as_tuple,
    first_argument,
    probe,
    together_and_alone,
)
from parity.diagnose.replay import Change, Operation


@probe
def resize(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Another interpolation, over all axes or over those of the image only."""
    ways: dict[str, Change] = {}
    for mode in ("nearest", "nearest-exact", "area"):
        ways[f"mode={mode}"] = partial(_resized, mode=mode)
    for corners in (False, True):
        text = f"linear over all axes, align_corners={corners}"
        ways[text] = partial(_resized, mode="linear", align_corners=corners)
        for mode, smooth in itertools.product(("bilinear", "bicubic"), (False, True)):
            text = f"mode={mode}, align_corners={corners}, antialias={smooth}"
            ways[text] = partial(_image_resized, mode=mode, align_corners=corners, antialias=smooth)
    for group in together_and_alone(operations, ("interpolate", "upsample")):
        for text, change in ways.items():
            yield Trial("resize", text, all_of(group, change))
        for text, axes in (("rows and columns", 2), ("everything", 3)):
            change = partial(_tiled_over, axes=axes)
            trial = f"{text} repeated as a whole instead of entry by entry"
            yield Trial("reshape_order", trial, all_of(group, change))


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
    y = op.result()
    index = torch.arange(y.shape[2]) * op.subject.shape[2] // y.shape[2]
    frames = op.subject.index_select(2, index).transpose(1, 2)
    image = F.interpolate(frames.flatten(0, 1), size=y.shape[3:], mode=mode, **options)
    return image.reshape(*frames.shape[:2], *image.shape[1:]).transpose(1, 2)


def _tiled_over(op: Operation, axes: int) -> Any:
    x, shape = op.subject, op.result().shape
    times = [1] * x.ndim
    for axis in range(max(x.ndim - axes, 2), x.ndim):
        times[axis] = shape[axis] // x.shape[axis]
    if axes == 2 and x.ndim == 5:
        x = x.index_select(2, torch.arange(shape[2]) * x.shape[2] // shape[2])
    return x.repeat(times)


@probe
def pooling(operations: Sequence[Operation]) -> Iterator[Trial]:
    """The divisor of a mean, another kind of pooling, or one entry instead of the mean."""
    for group in together_and_alone(operations, POOLS):
        name, n = group[0].name, int(group[0].name[-2])
        other = name.replace("avg", "max") if "avg" in name else name.replace("max", "avg")
        ways: list[tuple[str, Change]] = [
            (f"{other} instead of {name}", partial(_pooled, name=other))
        ]
        for flag in (True, False):
            ways.append((f"ceil_mode={flag}", again(ceil_mode=flag)))
            if "avg" in name:
                ways.append((f"count_include_pad={flag}", again(count_include_pad=flag)))
        if "avg" in name:
            ways.append(("the sum instead of the mean", _summed))
        for at in range(min(as_tuple(group[0].given["kernel_size"], n))):
            ways.append((f"entry {at} of each window", partial(_picked, at=at, n=n)))
        for text, change in ways:
            yield Trial("pooling", text, all_of(group, change))


def _pooled(op: Operation, name: str) -> Any:
    shared = ("input", "kernel_size", "stride", "padding", "ceil_mode")
    return getattr(F, name)(**{k: v for k, v in op.given.items() if k in shared})


def _summed(op: Operation) -> Any:
    n = int(op.name[-2])
    return op.result() * math.prod(as_tuple(op.given["kernel_size"], n))


def _picked(op: Operation, at: int, n: int) -> Any:
    x = op.subject
    stride = as_tuple(op.given.get("stride") or op.given["kernel_size"], n)
    for axis, step in zip(range(x.ndim - n, x.ndim), stride, strict=True):
        x = x.index_select(axis, torch.arange(at, x.shape[axis], step))
    return x


@probe
def slices(operations: Sequence[Operation]) -> Iterator[Trial]:
    """The first entries instead of the last, or entries one earlier."""
    for operation in operations:
        index = operation.args[1] if len(operation.args) > 1 else None
        if operation.name != "getitem" or not isinstance(index, tuple) or ... in index:
            continue
        for axis, count in _ends(index):
            cause = "cache" if operation.subject.ndim == 5 and axis == 2 else "glue"
            for text, change in (
                (f"the first {count} entries of axis {axis}", partial(_part, axis, 0, count)),
                (f"entries of axis {axis} one earlier", partial(_part, axis, -count - 1, count)),
                (f"the first entry of axis {axis} repeated", partial(_repeated, axis, 0, count)),
                (f"the last entry of axis {axis} repeated", partial(_repeated, axis, -1, count)),
            ):
                text = f"{text} instead of the last {count}"
                yield Trial(cause, text, {operation.place: change})


def _ends(index: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """Axes of which the last entries are taken, and how many."""
    for axis, part in enumerate(index):
        if isinstance(part, slice) and part.stop is None and (part.start or 0) < 0:
            yield axis, -part.start


def _part(axis: int, start: int, count: int, op: Operation) -> Any:
    return op.subject.narrow(axis, start % op.subject.shape[axis], count).clone()


def _repeated(axis: int, at: int, count: int, op: Operation) -> Any:
    one = op.subject.narrow(axis, at % op.subject.shape[axis], 1)
    return one.repeat_interleave(count, axis)


MOVES = ("permute", "transpose", "swapaxes", "movedim", "moveaxis")
SHAPES = ("reshape", "view", "flatten", "unflatten")


@probe
def reshape_order(operations: Sequence[Operation]) -> Iterator[Trial]:
    """The same values in another order: channel-last memory read as channel-first, and the like."""
    for operation in operations:
        name = operation.name
        ways: list[tuple[str, Change]] = []
        if name in (*SHAPES, *MOVES):
            ways.append((f"{name} of the channel-last array", _flattened))
            ways.append((f"{name} into a channel-last array", _unflattened))
        if name in MOVES:
            ways.append((f"a reshape instead of {name}", _reshaped))
            ways.append((f"a reshape of the channel-last array instead of {name}", _reshaped_last))
            ways.append((f"no {name}", first_argument))
        if name in ("chunk", "split", "tensor_split"):
            ways.append((f"the parts of {name} in opposite order", _opposite))
        if name == "repeat_interleave":
            ways.append(("repeated as a whole instead of entry by entry", _tiled))
        if name in ("pixel_shuffle", "pixel_unshuffle"):
            ways.append((f"the other order of channels in {name}", _shuffled))
        for text, change in ways:
            yield Trial("reshape_order", text, {operation.place: change})
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


def _reshaped(op: Operation) -> Any:
    return op.subject.reshape(op.result().shape)


def _reshaped_last(op: Operation) -> Any:
    """As if both sides kept the channel last, and the move were left out before a reshape."""
    y = op.result()
    sizes = op.function(
        torch.empty(tuple(range(2, 2 + op.subject.ndim))), *op.args[1:], **op.kwargs
    )
    channel = list(sizes.shape).index(3)  # where axis 1, of size 3 here, goes
    last = y.movedim(channel, -1).shape
    return op.subject.movedim(1, -1).reshape(last).movedim(-1, channel)


def _reshaped_back(op: Operation) -> Any:
    """The same of a move that brings the channel to axis 1."""
    y = op.result()
    marked = torch.empty(tuple(range(2, 2 + op.subject.ndim)))
    channel = int(op.function(marked, *op.args[1:], **op.kwargs).shape[1]) - 2
    last = y.movedim(1, -1).shape
    return op.subject.movedim(channel, -1).reshape(last).movedim(-1, 1)


def _opposite(op: Operation) -> Any:
    return tuple(op.result())[::-1]


def _tiled(op: Operation) -> Any:
    x, axis, y = op.subject, op.given.get("dim"), op.result()
    if axis is None:
        return x.reshape(-1).repeat(y.numel() // x.numel())
    times = [1] * x.ndim
    times[axis] = y.shape[axis] // x.shape[axis]
    return x.repeat(times)


def _shuffled(op: Operation) -> Any:
    """Channels as (block, channel), as TensorFlow's depth-to-space has them."""
    x, y = op.subject, op.result()
    if op.name == "pixel_shuffle":
        r = y.shape[-1] // x.shape[-1]
        blocks = x.reshape(x.shape[0], r * r, -1, *x.shape[2:])
        return op.function(blocks.transpose(1, 2).flatten(1, 2), r)
    r = x.shape[-1] // y.shape[-1]
    return y.reshape(y.shape[0], -1, r * r, *y.shape[2:]).transpose(1, 2).flatten(1, 2)
