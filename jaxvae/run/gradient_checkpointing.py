"""Gradient checkpointing: keep what goes into a module, and compute the rest again going back.

Source: diffusers 0.42.1, `ModelMixin.enable_gradient_checkpointing`.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx

from jaxvae.layers.scopes import entered


def call(module: nnx.Module, checkpoint: bool, *args: Any) -> Any:
    """Call `module`; with `checkpoint`, a gradient stores `args` alone and runs the module again.

    Source: diffusers 0.42.1, `torch.is_grad_enabled() and self.gradient_checkpointing`. Values that
    no transformation traces have no gradient either: they go straight through, so that whoever
    looks at each call of each module sees them.
    """
    leaves = jax.tree.leaves((module, args)) if checkpoint else ()
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        with entered(module):  # what runs is a copy, which has no name
            return _recomputed(module, *args)
    return module(*args)


@partial(nnx.remat, graph=False)
def _recomputed(module: Any, *args: Any) -> Any:
    # A module is an argument, not a constant: its parameters have gradients too, and what a random
    # stream counts inside comes out.
    return module(*args)


def set_checkpointing(model: nnx.Module, enable: bool) -> None:
    """Switch every module that has the attribute `gradient_checkpointing`."""
    for _, module in nnx.iter_modules(model):
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = enable


def is_checkpointing(module: nnx.Module) -> bool:
    """Whether this module makes its calls checkpointed."""
    return bool(getattr(module, "gradient_checkpointing", False))
