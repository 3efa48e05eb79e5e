"""Names of what cases call on the port: a golden trace holds no code."""

from collections.abc import Callable
from typing import Any

from parity.core.exceptions import InputError
from parity.core.pair import Case, Offline, Pair
from parity.traces.index import StoredCase

Method = str | Callable[..., Any]

FUNCTION = "function:"
"""Before the name of a function; no method has such a name."""


def offline_of(pair: Pair) -> Offline:
    """Maker of the port where torch is not installed.

    Raises:
        InputError: the pair does not say.
    """
    if pair.offline is None:
        raise InputError(
            f"pair {pair.name!r} does not say how its port is made without torch; give it"
            " offline=parity.Offline(...)"
        )
    return pair.offline


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


def case_of(stored: StoredCase, pair: Pair) -> Case:
    """The case of the pair that was recorded.

    Raises:
        InputError: it calls a function on the port that the pair does not list.
    """
    return Case(
        stored.name,
        path=stored.path,
        nnx=_method_of(stored.nnx, pair),
        depth=stored.depth,
        floor=stored.floor,
        r_limit=stored.r_limit,
        shipped=None if stored.shipped is None else _method_of(stored.shipped, pair),
    )


def _method_of(stored: str, pair: Pair) -> Method:
    if not stored.startswith(FUNCTION):
        return stored
    name, known = stored.removeprefix(FUNCTION), _functions(pair)
    if name not in known:
        raise InputError(
            f"the trace calls {name!r} on the port, and pair {pair.name!r} has"
            f" {', '.join(known) or 'none'} in Offline.methods; record it again"
        )
    return known[name]


def _functions(pair: Pair) -> dict[str, Callable[..., Any]]:
    methods = dict.fromkeys(offline_of(pair).methods)
    found = {function.__name__: function for function in methods}
    if len(found) < len(methods):
        raise InputError(f"two functions in Offline.methods of {pair.name!r} have one name")
    return found
