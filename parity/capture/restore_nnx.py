"""Running a model may change it: statistics of norms, counters, caches, random streams.

Every run of the harness leaves its model as it was. So a comparison does not change the user's
models, and each run starts from the state in which the recorded one started. Here is the port;
`restore_torch.py` has the reference.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from parity.capture.restore import GLOBAL, Attributes, Kept, copy_of, held_by
from parity.core.undo import undone


@contextmanager
def kept_port(*given: Any, streams: bool = True) -> Iterator[None]:
    """Put back what the block changes in modules and all else that it is `given`.

    Without `streams` random streams stay where the block leaves them.
    """
    kept = Kept((*given, *GLOBAL), _opened)
    held = [one for one in kept.found.values() if isinstance(one, nnx.Variable)]
    variables = [_Variable(one) for one in held if streams or not isinstance(one, nnx.RngState)]

    def restore() -> None:
        kept.restore()
        for variable in variables:
            variable.restore()

    with undone(restore):
        yield


def as_given(value: Any) -> Any:
    """A copy of an object that a call is given, in the state in which it is; arrays, which are
    never written to, and the model's own objects are not copied.
    """

    def instead(one: Any) -> Any:
        return one if isinstance(one, _OWN) else None

    return copy_of(
        value, held_by(value, lambda one: ({}, ()) if isinstance(one, _OWN) else None), instead
    )


_OWN = (jax.Array, nnx.Pytree, nnx.Variable)


def _opened(value: Any) -> Attributes | None:
    if isinstance(value, nnx.Variable) or not isinstance(value, nnx.Pytree):
        return None
    return vars(value), ()


class _Variable:
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
