"""What cases call on the port, and the strings they pass: a golden trace holds no code.

A trace names both, and the pair lists what it may name.
"""

from collections.abc import Callable
from typing import Any

from parity.core.exceptions import InputError, shown
from parity.core.pair import Case, Offline, Pair
from parity.core.tree import Skeleton, statics
from parity.traces.index import StoredCase

Method = str | Callable[..., Any]

FUNCTION = "function:"
"""Before the name of a function; no method has such a name."""

NUMBERS = (type(None), bool, int, float, complex)
"""Arguments besides arrays that name nothing."""


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
        InputError: the pair does not list it.
    """
    known = _listed(pair)
    for name, listed in known.items():
        if listed == method:
            return name
    raise InputError(
        f"a case of {pair.name!r} calls {getattr(method, '__name__', method)!r} on the port: name"
        f" it in Offline.methods, which has {_names(known)}"
    )


def case_of(stored: StoredCase, pair: Pair) -> Case:
    """The case of the pair that was recorded.

    Raises:
        InputError: it calls what the pair does not list on the port, or passes such a string.
    """
    check_words(stored.arguments, pair)
    return Case(
        stored.name,
        path=stored.path,
        nnx=_method_of(stored.nnx, pair),
        depth=stored.depth,
        floor=stored.floor,
        r_limit=stored.r_limit,
        shipped=None if stored.shipped is None else _method_of(stored.shipped, pair),
    )


def check_words(arguments: Skeleton, pair: Pair) -> None:
    """Refuse strings that the pair does not list: what is called may take one for a file's name.

    Raises:
        InputError: there is one among the arguments, or an object that no trace can hold.
    """
    known = offline_of(pair).words
    for value in statics(arguments):
        if not isinstance(value, NUMBERS) and value not in known:
            raise InputError(
                f"a case of {pair.name!r} passes {shown(value)} to the port: name it in"
                f" Offline.words, which has {', '.join(map(shown, known)) or 'none'}"
            )


def _method_of(stored: str, pair: Pair) -> Method:
    known = _listed(pair)
    if stored not in known:
        raise InputError(
            f"the trace calls {shown(stored.removeprefix(FUNCTION))} on the port, and pair"
            f" {pair.name!r} has {_names(known)} in Offline.methods; record it again"
        )
    return known[stored]


def _listed(pair: Pair) -> dict[str, Method]:
    """What may be called on the port, by the name that a trace has for it."""
    methods = dict.fromkeys(("__call__", *offline_of(pair).methods))
    found = {x if isinstance(x, str) else FUNCTION + x.__name__: x for x in methods}
    if len(found) < len(methods):
        raise InputError(f"two functions in Offline.methods of {pair.name!r} have one name")
    return found


def _names(known: dict[str, Method]) -> str:
    return ", ".join(name.removeprefix(FUNCTION) for name in known)
