"""Functions under `jax.checkpoint`, which saves memory in backward passes and hides calls."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import ad_checkpoint

from parity.core.undo import undone


@contextmanager
def no_checkpoints() -> Iterator[None]:
    """In the block, functions under `jax.checkpoint` and `nnx.remat` run where they are called.

    Both trace their function, on arrays that have no values then; no option of JAX keeps them from
    that.
    """
    original = getattr(ad_checkpoint, "_trace_to_jaxpr", None)
    if original is None:  # another JAX: such calls are not measured, and reports say so
        yield
        return

    def ran(function: Any, form: Any, avals: Any, debug: Any) -> Any:
        arrays = sys._getframe(1).f_locals.get("args_flat")
        if arrays is None:  # another JAX, as above
            return original(function, form, avals, debug)
        args, kwargs = jax.tree.unflatten(form, arrays)
        found = function(*args, **kwargs)
        return original(lambda *_, **__: found, form, avals, debug)

    def put(function: Any) -> None:
        setattr(ad_checkpoint, "_trace_to_jaxpr", function)  # noqa: B010

    with undone(lambda: put(original)):
        put(ran)
        yield
