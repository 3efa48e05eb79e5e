"""Running a model may change it: statistics of norms, counters, caches, random streams.

Every run of the harness leaves its model as it was. So a comparison does not change the user's
models, and each run starts from the state in which the recorded one started.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import torch
from flax import nnx

_REGISTRIES = frozenset(vars(torch.nn.Module())) - {"_buffers"}
"""What PyTorch itself keeps in a module: hooks, which may take themselves away, and parameters."""


@contextmanager
def kept_reference(module: torch.nn.Module) -> Iterator[None]:
    """Put back what the block changes in a model: buffers, attributes, what lists and dicts hold.

    Values of parameters are taken to stay.
    """
    attributes = [_Attributes(vars(one)) for one in module.modules()]
    tensors = {id(tensor): tensor for one in attributes for tensor in one.tensors()}
    clones = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]
    try:
        yield
    finally:
        for one in attributes:
            one.restore()
        with torch.no_grad():
            for tensor, clone in clones:
                if not torch.equal(tensor, clone):  # NaN counts as changed
                    tensor.copy_(clone)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What torch draws in the block follows from `seed` alone, and its own stream goes on after.

    So a comparison does not depend on how many random numbers were drawn before it. A port's
    random numbers are its state, which `kept_port` keeps.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextmanager
def kept_port(*given: Any, streams: bool = True) -> Iterator[None]:
    """Put back what the block changes in those of `given` that are NNX objects.

    Without `streams` random streams stay where the block leaves them.
    """
    objects = [one for one in given if isinstance(one, nnx.Pytree)]
    nodes = [node for root in objects for _, node in nnx.iter_graph(root)]
    attributes = [_Attributes(vars(node)) for node in nodes if isinstance(node, nnx.Pytree)]
    variables = [_Kept(node) for node in nodes
                 if isinstance(node, nnx.Variable)
                 and (streams or not isinstance(node, nnx.RngState))]  # fmt: skip
    try:
        yield
    finally:
        for one in attributes:
            one.restore()
        for variable in variables:
            variable.restore()


class _Kept:
    """The value of one variable. An array is never written to: to keep it is to keep the state.

    But a compiled program may take it over (donation): then a copy stands in for it. A parameter
    has none: what such a program returns for it is its value.
    """

    def __init__(self, variable: Any) -> None:
        self._variable, self._value = variable, variable.get_value()
        copied = isinstance(self._value, jax.Array) and not isinstance(variable, nnx.Param)
        self._copy = jnp.copy(self._value) if copied else None

    def restore(self) -> None:
        """Put it back, unless it is there still."""
        if self._variable.get_value() is self._value:
            return
        gone = isinstance(self._value, jax.Array) and self._value.is_deleted()
        if not gone or self._copy is not None:
            self._variable.set_value(self._copy if gone else self._value)


class _Attributes:
    """The attributes of one object, and what the dicts and lists among them hold."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        held = [value for name, value in attributes.items()
                if type(value) in (dict, list) and name not in _REGISTRIES]  # fmt: skip
        self._kept = [(holder, holder.copy()) for holder in (attributes, *held)]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor among them that is no parameter."""
        for _, kept in self._kept:
            for value in kept.values() if isinstance(kept, dict) else kept:
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    yield value

    def restore(self) -> None:
        """Put back what was removed, replaced or added; what did not change is not written to."""
        for holder, kept in self._kept:
            if isinstance(holder, list):
                if [*map(id, holder)] != [*map(id, kept)]:
                    holder[:] = kept
            elif {k: id(v) for k, v in holder.items()} != {k: id(v) for k, v in kept.items()}:
                holder.clear()
                holder.update(kept)
