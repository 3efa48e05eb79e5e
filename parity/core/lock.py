"""One comparison at a time: hooks, wrapped classes and random streams belong to the process.

Two at once, on two threads or one inside of the other, would record each other's calls.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from parity.core.exceptions import InputError
from parity.core.undo import undone

P = ParamSpec("P")
R = TypeVar("R")

RUNNING: dict[str, object] = {}
"""The token of the call that runs, if one does: by a token from before, an interrupt that arrives
as it is taken does not keep it."""


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises `InputError` where another of its kind is running."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        token = object()

        def give_back() -> None:
            if RUNNING.get("") is token:
                RUNNING.clear()

        with undone(give_back):
            if RUNNING.setdefault("", token) is not token:
                raise InputError(
                    "another comparison is running in this process; run them one by one"
                )
            return function(*args, **kwargs)

    return call
