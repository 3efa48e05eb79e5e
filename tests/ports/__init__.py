"""Small modules of Flax, and the weights of a reference in them; needs no PyTorch."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx


def nnx_of(call: Callable[..., Any], **parts: Any) -> nnx.Module:
    """Make a module with these attributes whose `__call__` is the function."""
    module = type("Net", (nnx.Module,), {"__call__": call})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


class Relu(nnx.Module):
    """A module where the reference has one."""

    def __call__(self, x: Any) -> Any:
        return nnx.relu(x)


class Block(nnx.Module):
    """The port of `tests.nets.TorchBlock`."""

    def __init__(self, residual: float = 1.0) -> None:
        rngs = nnx.Rngs(0)
        self.norm = nnx.GroupNorm(8, num_groups=4, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.conv = nnx.Conv(8, 8, (3, 3), padding=1, rngs=rngs)
        self.act = Relu()
        self.residual = residual

    def __call__(self, x: Any, scale: float = 1.0, cache: Any = None) -> Any:
        h = self.conv(self.act(self.norm(x))) * scale + self.residual * x
        return h, {"mean": h.mean((1, 2)), "none": cache}


def fill(port: nnx.Module, tensors: Mapping[str, Any]) -> Any:
    """Return the port with these arrays of the reference, each in the module of the same path."""
    for name, array in tensors.items():
        *path, own = name.split(".")
        module: Any = port
        for part in path:
            module = module[int(part)] if part.isdigit() else getattr(module, part)
        if isinstance(module, nnx.Embed):
            own = "embedding"
        elif array.ndim > 1:
            array, own = array.transpose(*range(2, array.ndim), 1, 0), "kernel"
        elif own == "weight":
            own = "scale"
        leaf = getattr(module, own)
        leaf[...] = jnp.asarray(np.ascontiguousarray(array), leaf.dtype)
    return port


def copy_weights(reference: Any, port: nnx.Module) -> Any:
    """Return the port with every parameter of the reference."""
    return fill(
        port, {name: p.detach().float().numpy() for name, p in reference.named_parameters()}
    )
