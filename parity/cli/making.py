"""Function that `parity compare` is pointed at: it makes both modules and their arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from parity.cli.options import load
from parity.core.exceptions import InputError

ARGUMENTS = ("torch_module", "nnx_module", "torch_args")
FORM = "(torch_module, nnx_module, args), or a mapping of the arguments of parity.compare"


def find_function(name: str) -> Callable[[], Any]:
    """Return the function that `module:function` names.

    Raises:
        InputError: there is none, or it is something else.
    """
    found = load(name)

    from parity.core.pair import Pair

    if isinstance(found, Pair):
        raise InputError(f"{name!r} is a parity.Pair, which has a ladder: `parity run {name}`")
    if not callable(found):
        kind = type(found).__name__
        raise InputError(f"{name!r} is a {kind}, expected a function that returns {FORM}")
    function: Callable[[], Any] = found
    return function


def arguments(name: str, function: Callable[[], Any]) -> dict[str, Any]:
    """Return the arguments of `parity.compare` that the function returns.

    Raises:
        InputError: it takes arguments itself, or returns something else.
    """
    from parity.pipeline import compare

    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{name}: {error}; it is called without arguments") from error
    made = function()
    if isinstance(made, Mapping):
        known = inspect.signature(compare).parameters
        unknown = [key for key in made if key not in known]
        missing = [key for key in ARGUMENTS if key not in made]
        if unknown:
            raise InputError(
                f"{name} returns a mapping, and parity.compare has no argument {unknown[0]!r}:"
                f" expected {', '.join(known)}"
            )
        if missing:
            raise InputError(f"{name} returns a mapping, and parity.compare needs {missing[0]!r}")
        return dict(made)
    if isinstance(made, tuple) and len(made) == len(ARGUMENTS):
        return dict(zip(ARGUMENTS, made, strict=True))
    size = f" of {len(made)}" if isinstance(made, tuple) else ""
    raise InputError(f"{name} returns a {type(made).__name__}{size}, expected {FORM}")
