"""What roundings come to in a gradient, of the terms that it is a sum of."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from parity.core.metrics import rms
from parity.force.torch import to_array
from parity.gradients.graph_torch import nodes

STEPS = (2.0**-20, 2.0**-24)
"""By how much each number is changed, relatively: in float64 all else is less."""

AS_MUCH = 2.0
"""What the smaller change comes to, in its units, may be so many times what the larger does: more
is a mask or a maximum that takes the other side."""

CANCELS = 4.0
"""A gradient that roundings inside the pass move so many times their own size has cancelled there:
the terms that arrive do not show it."""

WIDE = (torch.float64, torch.complex128)

Gradients = Sequence[torch.Tensor | None]


class Jitter:
    """Changes numbers between the operations of a backward pass, while it is on.

    These are the gradients that each operation gets, and what it kept of the forward pass. What is
    of coarser types, which code may ask for, stays as it is.
    """

    def __init__(self) -> None:
        self._step = 0.0
        self._draw = torch.Generator()

    def keeping(self) -> AbstractContextManager[None]:
        """The forward pass has to run in this block."""
        return saved_tensors_hooks(lambda one: one.detach(), self._changed)

    @contextmanager
    def on(self, outputs: Sequence[torch.Tensor], step: float) -> Iterator[None]:
        """In the block a backward pass from `outputs` is changed, always in the same way."""
        handles: list[Any] = []
        self._draw.manual_seed(0)
        try:
            handles.extend(node.register_prehook(self._all) for node in nodes(outputs))
            self._step = step
            yield
        finally:
            self._step = 0.0
            for handle in handles:
                handle.remove()

    def _all(self, gradients: Gradients) -> tuple[torch.Tensor | None, ...]:
        return tuple(one if one is None else self._changed(one) for one in gradients)

    def _changed(self, one: torch.Tensor) -> torch.Tensor:
        if not self._step or one.dtype not in WIDE:
            return one
        return one * (1 + self._step * signs(one, self._draw))


def spreads_of(
    outputs: Sequence[torch.Tensor],
    ends: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    values: Gradients,
    draw: torch.Generator,
    jitter: Jitter | None,
) -> Gradients:
    """What roundings of the terms of each gradient in `values` come to, in units of one rounding.

    The terms are what arrives at the outputs. Where a gradient cancels on the way (the bias of a
    key, in attention as a whole) they are, with a `jitter`, all that is between two operations. The
    graph is freed.
    """
    signed = [one * signs(one, draw) for one in given]
    found: Gradients = torch.autograd.grad(
        outputs, ends, signed, allow_unused=True, retain_graph=jitter is not None
    )
    if jitter is None:
        return found
    moved: list[Gradients] = []
    for step in STEPS:
        with jitter.on(outputs, step):
            moved.append(
                torch.autograd.grad(
                    outputs, ends, given, allow_unused=True, retain_graph=step != STEPS[-1]
                )
            )
    return [_larger(*each) for each in zip(values, found, *moved, strict=True)]


def _larger(
    value: torch.Tensor | None,
    arriving: torch.Tensor | None,
    far: torch.Tensor | None,
    near: torch.Tensor | None,
) -> torch.Tensor | None:
    if value is None or arriving is None or far is None or near is None:
        return arriving
    between, closer = ((one - value) / step for one, step in zip((far, near), STEPS, strict=True))
    cancelled = _size(between) > CANCELS * max(_size(value), _size(arriving))
    return between if cancelled and _size(closer) < AS_MUCH * _size(between) else arriving


def signs(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """-1 or 1 for each entry."""
    drawn = torch.randint(0, 2, like.shape, generator=draw, dtype=torch.int8)
    return (drawn * 2 - 1).to(like.dtype)


def _size(one: torch.Tensor) -> float:
    return rms(to_array(one, False))
