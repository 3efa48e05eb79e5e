"""Names of what cases call on the port: a golden trace holds no code."""

from collections.abc import Callable
from typing import Any

from parity.core.exceptions import InputError
from parity.core.pair import Case, Pair
from parity.traces.index import StoredCase

Method = str | Callable[..., Any]

FUNCTION = "function:"
"""Before the name of a function; no method has such a name."""


def name_of(method: Method, pair: Pair) -> str:
    """The name under which a check will find it.

    Raises:
        InputError: it is a function that the pair does not list.
    """
    if isinstance(method, str):
        return method
    known = _functions(pair)
    for name, function in known.items():
        if function is method:
            return FUNCTION + name
    raise InputError(
        f"a case of {pair.name!r} calls {getattr(method, '__name__', method)!r} on the port: name"
        f" it in Offline.methods, which has {', '.join(known) or 'none'}"
    )


def method_of(name: str, pair: Pair) -> Method:
    """The method or function of that name.

    Raises:
        InputError: the pair lists no such function.
    """
    if not name.startswith(FUNCTION):
        return name
    known = _functions(pair)
    function = known.get(name.removeprefix(FUNCTION))
    if function is None:
        raise InputError(
            f"the trace calls {name.removeprefix(FUNCTION)!r} on the port, and pair {pair.name!r}"
            f" has {', '.join(known) or 'none'} in Offline.methods; record it again"
        )
    return function


def case_of(stored: StoredCase, pair: Pair) -> Case:
    """The case of the pair that was recorded."""
    return Case(
        stored.name,
        path=stored.path,
        nnx=method_of(stored.nnx, pair),
        depth=stored.depth,
        floor=stored.floor,
        r_limit=stored.r_limit,
        shipped=None if stored.shipped is None else method_of(stored.shipped, pair),
    )


def _functions(pair: Pair) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for function in pair.offline.methods if pair.offline else ():
        name = function.__name__
        if found.setdefault(name, function) is not function:
            raise InputError(f"two functions in Offline.methods of {pair.name!r} are named {name}")
    return found
