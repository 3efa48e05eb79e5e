"""Modes of PyTorch and JAX that the caller is in, and which are none of a comparison's."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import torch


@contextmanager
def own_modes() -> Iterator[None]:
    """Let the block write to tensors, move arrays to devices, and see what is compiled run.

    Autocast stays: it is a part of what the reference does.
    """
    with (
        torch.inference_mode(False),
        torch.compiler.set_stance("force_eager"),
        jax.transfer_guard("allow"),
    ):
        yield


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """The module from which `torch.compile` made this one, or itself."""
    compiled = type(module).__module__.startswith("torch._dynamo.")
    original: torch.nn.Module = getattr(module, "_orig_mod", module) if compiled else module
    return original
