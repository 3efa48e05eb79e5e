"""The reference is left as it was by every run, and so are all random streams."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from parity.capture.restore import GLOBAL, STREAMS, Attributes, Kept, Stream, copy_of, held_by
from parity.core.undo import undone

STREAMS[torch.Generator] = Stream(
    lambda one: one.get_state(),
    lambda one, state: one.set_state(state),
    lambda one: torch.rand(3, generator=one),
)

_HOOKS = frozenset(vars(torch.nn.Module())) - {"_buffers", "_parameters", "_modules"}
"""Attributes of PyTorch itself in a module that are not looked into: hooks, which may remove
themselves."""


@contextmanager
def kept_reference(module: torch.nn.Module, *given: Any) -> Iterator[Kept]:
    """Put back what the block changes in a model, and in what else it is `given`.

    That is parameters, buffers, attributes, what containers and objects hold, and the states of
    random streams.
    """
    kept = Kept((*module.modules(), *given, *GLOBAL, torch.default_generator), _opened)
    held = [value for value in kept.found.values() if isinstance(value, torch.Tensor)]
    clones = [(tensor, tensor.detach().clone()) for tensor in held]

    def restore() -> None:
        kept.restore()
        with torch.no_grad():
            for tensor, clone in clones:
                if not torch.equal(tensor, clone):  # NaN counts as changed
                    tensor.detach().copy_(clone)

    with undone(restore):
        yield kept


class HeldObject:
    """Whether a call changes an object that it is given, such as a cache."""

    def __init__(self, value: Any) -> None:
        self._kept = held_by(value, _apart)
        found = () if self._kept is None else self._kept.found.values()
        self._versions = [(x, x._version) for x in found if counts_writes(x)]

    @property
    def changed(self) -> bool:
        """True if the object is no longer as it was."""
        written = any(tensor._version != version for tensor, version in self._versions)
        return written or (self._kept is not None and self._kept.changed)


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of an object that a call is given, with `change(x)` for its tensors; itself if there
    is nothing in it that a call could change.
    """

    def instead(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return change(one)
        return one if isinstance(one, torch.nn.Module) else None

    return copy_of(value, held_by(value, _apart), instead)


def counts_writes(value: Any) -> bool:
    """True for a tensor that knows how often it was written to."""
    return isinstance(value, torch.Tensor) and not value.is_inference()


def _apart(value: Any) -> Attributes | None:
    """Modules are not looked into: a call is given those of the model."""
    return ({}, ()) if isinstance(value, torch.nn.Module) else None


def _opened(value: Any) -> Attributes | None:
    return (vars(value), _HOOKS) if isinstance(value, torch.nn.Module) else None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make what torch draws in the block follow from `seed` alone; its own stream goes on after.

    So a comparison does not depend on how many random numbers were drawn before it. A port's
    random numbers are its state, which `kept_port` keeps.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
