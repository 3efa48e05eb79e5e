"""Named points in functional code that a comparison looks at: `parity.tap("scores", x)`.

A tap belongs to the code of the module that is running. It knows no framework: both sides call it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from parity.core.exceptions import InputError

T = TypeVar("T")

KIND = "tap"
"""Text in place of the class of a module where the call is a tap."""

Callback = Callable[[str, Any], Any]
"""Gets a tap's name and value, and returns what its code goes on with."""

# by thread: another thread's tap belongs to no call of the run
_callbacks: dict[int, Callback] = {}
_called: set[str] = set()


def tap(name: str, x: T) -> T:
    """Name the array or nested arrays `x`, and return it.

    A comparison takes it for the output of a call at `<path of the module that is running>.<name>`,
    of `<name>` in the root, and matches it with the other side's tap or module of that path. The
    name may have dots: a port that is a function names the reference's modules so. In a loop of the
    port's that JAX runs, `*` in the name stands for the turn: `layers.*` is `layers.0` at first.
    Without a comparison a tap does nothing.
    """
    _called.add(name)
    return _observed(name, x) if _callbacks else x


def called() -> frozenset[str]:
    """The names of all taps that this process has passed.

    Some may have been compiled since, and are not passed again.
    """
    return frozenset(_called)


@contextmanager
def observed(callback: Callback) -> Iterator[None]:
    """Call `callback` at the taps of this thread in the block."""
    thread = threading.get_ident()
    before = _callbacks.get(thread)
    _callbacks[thread] = callback
    try:
        yield
    finally:
        if before is None:
            del _callbacks[thread]
        else:
            _callbacks[thread] = before


def _observed(name: Any, x: T) -> T:
    callback = _callbacks.get(threading.get_ident())
    if callback is None:
        return x
    if not isinstance(name, str) or "#" in name or not all(name.split(".")):
        raise InputError(f"tap {name!r}: expected a name such as 'scores' or 'layers.0.attn'")
    value: T = callback(name, x)
    return value
