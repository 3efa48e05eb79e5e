"""Resizing, pooling, and the order of entries; channels that belong together in pairs."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Other windows than PyTorch's bins, which may overlap, or another kind of pooling."""
    for (kind, pooled), (text, ends) in itertools.product(_POOLED.items(), _WINDOWS.items()):
        change = partial(_binned, n=int(op.name[-2]), pooled=pooled, ends=ends)
        yield "pooling", f"the {kind} over {text}", change


_POOLED: dict[str, Callable[..., torch.Tensor]] = {"mean": torch.mean, "maximum": torch.amax}

_WINDOWS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "PyTorch's bins": lambda i, n, bins: (i * n // bins, -(-(i + 1) * n // bins)),
    "windows of size // bins": lambda i, n, bins: (i * (n // bins), (i + 1) * (n // bins)),
    "windows of size // bins and the rest": lambda i, n, bins: (
        i * (n // bins),
        (i + 1) * (n // bins) + n % bins,
    ),
    "bins that do not overlap": lambda i, n, bins: (i * n // bins, (i + 1) * n // bins),
    "bins of which the first are larger": lambda i, n, bins: (
        i * (n // bins) + min(i, n % bins),
        (i + 1) * (n // bins) + min(i + 1, n % bins),
    ),
    "windows of size / bins, rounded up": lambda i, n, bins: (
        i * -(-n // bins),
        (i + 1) * -(-n // bins),
    ),
}
"""Where the window i of an axis of n entries begins and ends."""


def _binned(op: Operation, n: int, pooled: Callable[..., torch.Tensor], ends: Any) -> Any:
    x = op.subject
    for axis, bins in zip(range(-n, 0), op.result().shape[-n:], strict=True):
        windows = [slice(*ends(i, x.shape[axis], bins)) for i in range(bins)]
        along = x.movedim(axis, 0)
        x = torch.stack([pooled(along[one], dim=0) for one in windows]).movedim(0, axis)
    return x


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
            at = torch.tensor([*entries]) % op.subject.shape[axis]
            change = partial(lambda op, **at: op.subject.index_select(**at), dim=axis, index=at)
            yield cause, f"{text} instead of the last {count}", change


MOVES = ("permute", "transpose", "swapaxes", "movedim", "moveaxis")
SHAPES = ("reshape", "view", "flatten", "unflatten")
PARTS = ("chunk", "split", "tensor_split", "unbind")
REPEATS = ("repeat_interleave", "repeat", "tile")
SHUFFLES = ("pixel_shuffle", "pixel_unshuffle", "unfold", "fold")


@probe("cat", "concat", each=True)
def copies(op: Operation) -> Ways:
    """Copies of an array joined, for its entries repeated."""
    joined = op.given["tensors"]
    if len(joined) > 1 and all(one is joined[0] for one in joined):
        yield "reshape_order", "entries repeated for copies joined", _other_repeat


@probe(*SHAPES, *MOVES, *PARTS, *REPEATS, *SHUFFLES, "glu", each=True)
def reshape_order(op: Operation) -> Ways:
    """The same values in another order: channel-last memory read as channel-first, and the like."""
    ways: tuple[tuple[Sequence[str], str, Change], ...] = (
        ((*SHAPES, *MOVES), "{} of the channel-last array", _flattened),
        ((*SHAPES, *MOVES), "{} into a channel-last array", _unflattened),
        (MOVES, "a reshape instead of {}", lambda op: op.subject.reshape(op.result().shape)),
        (MOVES, "a reshape of the channel-last array instead of {}", _reshaped_last),
        (MOVES, "leaving out {}", first_argument),
        (REPEATS, "whole arrays repeated for entries, or entries for arrays, in {}", _other_repeat),
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
        for order in _axes(x.shape, y.shape):
            text = f"{op.name} with axes in the order {order}"
            yield "reshape_order", text, partial(_reshaped, order=order)
    elif op.name in SHUFFLES and "dimension" not in op.given:
        for order in [*itertools.permutations(range(3))][1:]:
            text = f"channels and the axes of a block in the order {order} in {op.name}"
            yield "reshape_order", text, partial(_shuffled, order=order)


def _orders(n: int) -> Iterable[Sequence[int]]:
    """All orders of few parts; of many those with two exchanged, in one half or in both."""
    if n < 5:
        return itertools.permutations(range(n))
    pairs = [(a, b, h) for h in (0, n // 2) for a, b in itertools.combinations(range(n - h), 2)]
    ways = [{a: b, b: a, a + h: b + h, b + h: a + h} for a, b, h in pairs]
    return [[way.get(i, i) for i in range(n)] for way in ways]


def _axes(x: Sequence[int], y: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Orders of the longer shape: of axes that are one in the other, and of neighbours."""
    many, few = sorted((x, y), key=len, reverse=True)
    if len(many) == len(few):
        return {}
    found: dict[tuple[int, ...], None] = {}
    start = 0
    for size in few:
        stop = start + 1
        while stop < len(many) and math.prod(many[start:stop]) < size:
            stop += 1
        if math.prod(many[start:stop]) != size:  # memory read anew: no axes are joined or split
            break
        for inner in itertools.permutations(range(start, stop)) if stop - start < 5 else ():
            found[(*range(start), *inner, *range(stop, len(many)))] = None
        start = stop
    for a in range(len(many) - 1):
        found[(*range(a), a + 1, a, *range(a + 2, len(many)))] = None
    found.pop(tuple(range(len(many))), None)
    return found


def _reshaped(op: Operation, order: Sequence[int]) -> Any:
    """Axes in another order before they are merged, or one split into them otherwise."""
    x, y = op.subject, op.result()
    if x.ndim > y.ndim:
        return x.permute(*order).reshape(y.shape)
    back = [order.index(i) for i in range(len(order))]
    return x.reshape([y.shape[i] for i in order]).permute(*back)


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


def _shuffled(op: Operation, order: Sequence[int]) -> Any:
    """Channels not as (channel, block): (block, channel) is how TensorFlow has them."""
    x, y = op.subject, op.result()
    joins = op.name in ("pixel_shuffle", "fold")
    whole, channels = (x, y.shape[1]) if joins else (y, x.shape[1])
    if "kernel_size" in op.given:
        block = as_tuple(op.given["kernel_size"], 2)
    else:
        block = as_tuple(math.isqrt(whole.shape[1] // channels), 2)
    sizes, rest = (channels, *block), whole.shape[2:]
    back = [order.index(i) for i in range(3)]
    parts, way = ([sizes[i] for i in order], back) if joins else (sizes, order)
    z = whole.reshape(len(x), *parts, -1).permute(0, *(i + 1 for i in way), 4)
    z = z.reshape(len(x), -1, *rest)
    return op.again(input=z) if joins else z


def _other_repeat(op: Operation) -> Any:
    size = op.result().shape
    x = op.args[0][0] if isinstance(op.args[0], (list, tuple)) else op.subject
    x = x.flatten() if len(size) < x.ndim else x[(None,) * (len(size) - x.ndim)]
    return _repeated(x, size, range(len(size)) if op.name == "repeat_interleave" else ())


def _other_gate(op: Operation) -> Any:
    axis = op.given.get("dim", -1)
    return op.again(input=op.subject.roll(op.subject.shape[axis] // 2, axis))
