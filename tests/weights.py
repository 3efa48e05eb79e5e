"""The way of weights from the reference to its port; needs no PyTorch."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx


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
