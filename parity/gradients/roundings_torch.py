"""Size of rounding in a gradient, in float64: of the terms of its sum, and by changed numbers."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from parity.core.metrics import rms
from parity.force.torch import to_array
from parity.gradients.noise import AS_MUCH, CANCELS, SHAKEN, STEPS

ACCUMULATES = "torch::autograd::AccumulateGrad"
"""The operation that a leaf of the graph has."""

WIDE = (torch.float64, torch.complex128)

Gradients = Sequence[torch.Tensor | None]


class Shake:
    """Changes numbers by a few roundings, drawn from a `number`; of 0 not at all."""

    def __init__(self, number: int) -> None:
        self.number = number
        # what lies near a kink is on one side of it
        self._by = SHAKEN if number % 2 else -SHAKEN
        self._draw = torch.Generator().manual_seed((number + 1) // 2)

    def __call__(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor, shaken by roundings of a type."""
        if not self.number:
            return tensor
        drawn = torch.randn(tensor.shape, generator=self._draw, dtype=torch.float64)
        return tensor * (1 + self._by * torch.finfo(dtype).eps / 2 * drawn)


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
    jitter: Jitter,
) -> Gradients:
    """Roundings of the terms of each gradient in `values`, in units of one rounding.

    The terms are those that arrive at the outputs. Where a gradient cancels on the way (the bias of
    a key, in attention as a whole) they are all that pass between two operations. The graph stays.
    """

    def run(given: Sequence[torch.Tensor]) -> Gradients:
        return torch.autograd.grad(outputs, ends, given, allow_unused=True, retain_graph=True)

    arriving = run([one * signs(one, draw) for one in given])
    moved: list[Gradients] = []
    for step in STEPS:
        with jitter.on(outputs, step):
            moved.append(run(given))
    return [_larger(*each) for each in zip(values, arriving, *moved, strict=True)]


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


def nodes(outputs: Sequence[torch.Tensor]) -> Sequence[Any]:
    """The operations of the backward pass from some arrays, each once."""
    found: dict[Any, None] = {}
    rest: list[Any] = [one.grad_fn for one in outputs]
    while rest:
        node = rest.pop()
        if node is not None and node not in found:
            found[node] = None
            rest.extend(after for after, _ in node.next_functions)
    return list(found)


def leads_to(output: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[bool]:
    """True for each of the `leaves` of its graph that an array is computed from."""
    found = (node for node in nodes([output]) if node.name() == ACCUMULATES)
    ends = {id(node.variable) for node in found}
    return [id(leaf) in ends for leaf in leaves]
