"""The reference is left as it was by every run, and so is torch's own random stream."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from parity.capture.restore_nnx import Attributes
from parity.core.undo import undone

_REGISTRIES = frozenset(vars(torch.nn.Module())) - {"_buffers"}
"""Attributes of PyTorch itself in a module: hooks, which may remove themselves, and parameters."""


@contextmanager
def kept_reference(module: torch.nn.Module) -> Iterator[None]:
    """Put back what the block changes in a model: buffers, attributes, what lists and dicts hold.

    Values of parameters are taken to stay.
    """
    attributes = [Attributes(vars(one), _REGISTRIES) for one in module.modules()]
    held = {id(value): value for one in attributes for value in one.values()}
    tensors = [value for value in held.values() if isinstance(value, torch.Tensor)]
    own = [tensor for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)]
    clones = [(tensor, tensor.detach().clone()) for tensor in own]

    def restore() -> None:
        for one in attributes:
            one.restore()
        with torch.no_grad():
            for tensor, clone in clones:
                if not torch.equal(tensor, clone):  # NaN counts as changed
                    tensor.copy_(clone)

    with undone(restore):
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make what torch draws in the block follow from `seed` alone; its own stream goes on after.

    So a comparison does not depend on how many random numbers were drawn before it. A port's
    random numbers are its state, which `kept_port` keeps.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
