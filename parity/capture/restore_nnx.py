"""Running a model may change it: statistics of norms, counters, caches, random streams.

Every run of the harness leaves its model as it was. So a comparison does not change the user's
models, and each run starts from the state in which the recorded one started. Here is the port;
`state_torch` has the reference.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from parity.core.undo import undone


@contextmanager
def kept_port(*given: Any, streams: bool = True) -> Iterator[None]:
    """Put back what the block changes in those of `given` that are NNX objects.

    Without `streams` random streams stay where the block leaves them.
    """
    objects = [one for one in given if isinstance(one, nnx.Pytree)]
    nodes = [node for root in objects for _, node in nnx.iter_graph(root)]
    attributes = [Attributes(vars(node)) for node in nodes if isinstance(node, nnx.Pytree)]
    held = [node for node in nodes if isinstance(node, nnx.Variable)]
    variables = [_Kept(one) for one in held if streams or not isinstance(one, nnx.RngState)]

    def restore() -> None:
        for one in attributes:
            one.restore()
        for variable in variables:
            variable.restore()

    with undone(restore):
        yield


class _Kept:
    """The value of one variable. An array is never written to: to keep it is to keep the state.

    But a compiled program may take it over (donation): then a copy stands in for it. A parameter
    has none: its value is the one that such a program returns for it.
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


class Attributes:
    """The attributes of one object, and what the dicts and lists among them hold.

    Those named in `apart` are not looked into.
    """

    def __init__(self, attributes: dict[str, Any], apart: Collection[str] = ()) -> None:
        held = [value for name, value in attributes.items() if name not in apart]
        held = [value for value in held if type(value) in (dict, list)]
        self._kept = [(holder, holder.copy()) for holder in (attributes, *held)]

    def values(self) -> Iterator[Any]:
        """Every value among them."""
        for _, kept in self._kept:
            yield from kept.values() if isinstance(kept, dict) else kept

    def restore(self) -> None:
        """Put back what was removed, replaced or added; what did not change is not written to."""
        for holder, kept in self._kept:
            if isinstance(holder, list):
                if [*map(id, holder)] != [*map(id, kept)]:
                    holder[:] = kept
            elif {k: id(v) for k, v in holder.items()} != {k: id(v) for k, v in kept.items()}:
                holder.clear()
                holder.update(kept)
