"""Gradient checkpointing: keep what goes into a module, and compute the rest again going back.

Source: diffusers 0.42.1, `ModelMixin.enable_gradient_checkpointing`.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx

from jaxvae.run.computations import call_apart


def call(module: nnx.Module, checkpoint: bool, *args: Any) -> Any:
    """Call `module`; with `checkpoint`, a gradient stores `args` alone and runs the module again.

    Source: diffusers 0.42.1, `torch.is_grad_enabled() and self.gradient_checkpointing`. Values that
    no transformation traces have no gradient either: they go straight through, so that whoever
    looks at each call of each module sees them.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((module, args))):
        return module(*args)
    return call_apart(_recomputed if checkpoint else _kept, module, *args)


def _kept(module: Any, *args: Any) -> Any:
    return module(*args)


@partial(nnx.remat, graph=False)
def _recomputed(module: Any, *args: Any) -> Any:
    # A module is an argument, not a constant: its parameters have gradients too, and what a random
    # stream counts inside comes out.
    return module(*args)


class GradientCheckpointing(nnx.Module):
    """A model whose modules are switched that have the attribute `gradient_checkpointing`.

    Source: diffusers 0.42.1, `ModelMixin`.
    """

    def enable_gradient_checkpointing(self) -> None:
        """Store less for a gradient: every resnet runs again on the way back.

        Off at first. Values stay the same, gradients up to rounding, and without a gradient nothing
        changes.
        """
        self._set_gradient_checkpointing(True)

    def disable_gradient_checkpointing(self) -> None:
        """Store every intermediate value for a gradient, as at first."""
        self._set_gradient_checkpointing(False)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """True if any part of the model is checkpointed."""
        modules = (module for _, module in nnx.iter_modules(self))
        return any(getattr(module, "gradient_checkpointing", False) for module in modules)

    def _set_gradient_checkpointing(self, enable: bool) -> None:
        for _, module in nnx.iter_modules(self):
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = enable
