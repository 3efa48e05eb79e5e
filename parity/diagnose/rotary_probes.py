"""Probes of channels that belong together, as a rotary embedding pairs them: halves, neighbours."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from parity.diagnose.probe import Trial, probe
from parity.diagnose.replay import Change, Operation


@probe
def pairs(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Neighbouring channels instead of those of two halves, and the other way round."""
    for text, changed in (
        ("channels paired with their neighbours instead of those of the other half", _neighbours),
        ("channels paired with those of the other half instead of their neighbours", _halves),
    ):
        found = {operation.place: changed(operation) for operation in operations}
        changes = {place: change for place, change in found.items() if change is not None}
        if len(changes) > 1:  # taken apart and put together again
            yield Trial("reshape_order", text, changes)


def _neighbours(op: Operation) -> Change | None:
    """Every other entry, for an operation that takes halves apart or puts them together."""
    part = _last(op)
    if part is not None and part.step in (None, 1):
        size = op.subject.shape[-1]
        start, stop, _ = part.indices(size)
        if (start, stop) in ((0, size // 2), (size // 2, size)) and size % 2 == 0:
            return partial(_every_other, first=int(start > 0))
    if op.name == "chunk" and _two(op, 1) and _along_last(op, op.subject.ndim, 2):
        return lambda op: (_every_other(op, 0), _every_other(op, 1))
    if op.name in ("cat", "concat") and _joins_two(op) and _along_last(op, op.args[0][0].ndim, 1):
        return lambda op: torch.stack(tuple(op.args[0]), -1).flatten(-2)
    return None


def _halves(op: Operation) -> Change | None:
    """Halves, for an operation that takes every other entry or puts such together."""
    part = _last(op)
    if part is not None and part.step == 2 and part.start in (None, 0, 1) and part.stop is None:
        return partial(_half, second=bool(part.start))
    if op.name == "stack" and _joins_two(op) and _along_last(op, op.args[0][0].ndim + 1, 1):
        return lambda op: torch.stack(tuple(op.args[0]), -2)
    return None


def _last(op: Operation) -> slice | None:
    """The part of the last axis that is taken, if only that is."""
    index = op.args[1] if op.name == "getitem" and len(op.args) > 1 else None
    if not isinstance(index, tuple) or not all(isinstance(one, slice) for one in index[1:]):
        return None
    whole = index[0] is ... or (index[0] == slice(None) and len(index) == op.subject.ndim)
    part = index[-1]
    alone = whole and all(one == slice(None) for one in index[1:-1])
    return part if alone and isinstance(part, slice) else None


def _two(op: Operation, at: int) -> bool:
    return len(op.args) > at and op.args[at] == 2


def _joins_two(op: Operation) -> bool:
    parts = op.args[0] if op.args else ()
    return isinstance(parts, (tuple, list)) and len(parts) == 2 and parts[0].shape == parts[1].shape


def _along_last(op: Operation, rank: int, at: int) -> bool:
    axis = op.args[at] if len(op.args) > at else op.kwargs.get("dim", 0)
    return bool(axis in (-1, rank - 1))


def _every_other(op: Operation, first: int) -> Any:
    return op.subject[..., first::2].clone()


def _half(op: Operation, second: bool) -> Any:
    return op.subject.chunk(2, -1)[int(second)].clone()
