"""Running a model may change it: statistics of norms, random streams. A comparison must not.

Nor may a comparison depend on how many random numbers were drawn before it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from flax import nnx


@contextmanager
def unchanged(reference: torch.nn.Module, port: nnx.Module) -> Iterator[Callable[[], None]]:
    """Put both models back into the state that they have now, when called and at the end."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in reference.buffers()]
    # arrays are never written to: to keep them is to keep the state
    variables = [(variable, variable[...]) for variable in _variables(port)]

    def restore() -> None:
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        for variable, value in variables:
            if variable[...] is not value:
                variable[...] = value

    try:
        yield restore
    finally:
        restore()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What torch draws in the block follows from `seed` alone, and its own stream goes on after.

    A port's random numbers are its state, which `unchanged` keeps.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _variables(port: nnx.Module) -> list[Any]:
    return [value for _, value in nnx.iter_graph(port) if isinstance(value, nnx.Variable)]
