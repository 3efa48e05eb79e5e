"""One comparison at a time: hooks, wrapped classes and random streams belong to the process.

Two at once, on two threads or one inside of the other, would record each other's calls.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from parity.core.exceptions import InputError

P = ParamSpec("P")
R = TypeVar("R")


class Turn:
    """A lock that does not block: a second caller gets an error instead of waiting."""

    def __init__(self, name: str) -> None:
        """`name` is what blocks run, as the message has it."""
        self._name = name
        self._holders: dict[str, object] = {}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have it for the block, which gives it back however it ends.

        Raises:
            InputError: another block has it.
        """
        # An interrupt may arrive after any call: who has it is known by a token from before, and
        # what it breaks off of giving back is done once more.
        token = object()
        try:
            try:
                if self._holders.setdefault("", token) is not token:
                    raise InputError(
                        f"another {self._name} is running in this process; run them one by one"
                    )
                yield
            finally:
                self._give_back(token)
        finally:
            self._give_back(token)

    @property
    def free(self) -> bool:
        """True if no block holds it."""
        return not self._holders

    def _give_back(self, token: object) -> None:
        if self._holders.get("") is token:
            self._holders.clear()


COMPARISON = Turn("comparison")
"""The lock that `parity.compare` and the commands hold while they run."""


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises `InputError` where another of its kind is running."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with COMPARISON.taken():
            return function(*args, **kwargs)

    return call
