"""Random rounding of every operation of PyTorch, which shows how much of a result is rounding."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity.core.tree import mapped
from parity.force.common import STEP


class Roundings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes what each operation returns by a few roundings at random, forward and backward.

    This is Monte Carlo arithmetic. Two samples after each other are changed in opposite ways: what
    lies near a kink is on the other side of it in one of them.
    """

    def __init__(self, sample: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._step = STEP if sample % 2 else -STEP
        self._draw = torch.Generator().manual_seed((sample + 1) // 2)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; a view, and what it writes in place, are as they are."""
        result = func(*args, **(kwargs or {}))
        if any(one.alias_info is not None for one in func._schema.returns):
            return result
        return mapped(self._changed, result)

    def _changed(self, one: torch.Tensor) -> torch.Tensor:
        if not (one.is_floating_point() or one.is_complex()) or _whole(one):
            return one
        drawn = torch.randn(one.shape, generator=self._draw, dtype=torch.float32)
        return one * (1 + self._step * drawn).to(one.dtype)


def _whole(one: torch.Tensor) -> bool:
    """True for whole numbers, as masks and positions are: they have no rounding."""
    return not one.is_complex() and bool((one == one.round()).all())
