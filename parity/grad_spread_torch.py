"""What roundings inside a backward pass come to, where what they are summed to cancels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from parity.grad_graph_torch import nodes
from parity.metrics import rms
from parity.wide import to_array

STEP = 2.0**-20
"""By how much each number of the pass is changed, relatively: in float64 all else is less."""

CANCELS = 1e3
"""A gradient that roundings inside the pass move so many times their own size has cancelled there:
the terms that arrive do not show it."""


def spreads_of(
    outputs: Sequence[torch.Tensor],
    ends: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor | None],
    draw: torch.Generator,
) -> Sequence[torch.Tensor | None]:
    """What roundings of the terms of each gradient in `values` come to, in units of one rounding.

    The terms are what arrives at the outputs. Where a gradient cancels on the way (the bias of a
    key, in attention as a whole) they are all that is between two operations. The graph is freed.
    """

    def signs(like: torch.Tensor) -> torch.Tensor:
        drawn = torch.randint(0, 2, like.shape, generator=draw)
        return (drawn * 2 - 1).to(torch.float64)

    jitter = [one * signs(one) for one in given]
    found: Sequence[torch.Tensor | None] = torch.autograd.grad(
        outputs, ends, jitter, allow_unused=True, retain_graph=True
    )
    with _between(outputs, lambda one: one * (1 + STEP * signs(one))):
        moved: Sequence[torch.Tensor | None] = torch.autograd.grad(
            outputs, ends, given, allow_unused=True
        )
    spreads = []
    for value, arriving, other in zip(values, found, moved, strict=True):
        if value is None or arriving is None or other is None:
            spreads.append(arriving)
            continue
        inside = (other - value) / STEP
        cancelled = _size(inside) > CANCELS * max(_size(value), _size(arriving))
        spreads.append(inside if cancelled else arriving)
    return spreads


@contextmanager
def _between(
    outputs: Sequence[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """In the block each operation of a backward pass gets its gradients changed."""

    def changed(gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        return tuple(one if one is None else change(one) for one in gradients)

    handles: list[Any] = []
    try:
        handles.extend(node.register_prehook(changed) for node in nodes(outputs))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _size(one: torch.Tensor) -> float:
    return rms(to_array(one, False))
