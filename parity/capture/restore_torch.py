"""The reference is left as it was by every run, and so are all random streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from parity.capture.restore import GLOBAL, STREAMS, Attributes, Kept, Stream
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
