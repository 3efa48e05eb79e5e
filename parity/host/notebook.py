"""Progress in a notebook: a line below the cell, which is gone at the end."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from parity.host.progress import Progress

P = ParamSpec("P")
T = TypeVar("T")

OFTEN = 0.1
"""Seconds between two messages to the notebook; a new stage is shown at once."""


def shown_in_notebook(function: Callable[P, T]) -> Callable[P, T]:
    """The function; in a notebook it shows its progress if it is called without `progress`."""

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if given.get("progress") is not None or getattr(shell, "kernel", None) is None:
            return function(*args, **given)
        with _line() as progress:
            given["progress"] = progress
            return function(*args, **given)

    return call


@contextmanager
def _line() -> Iterator[Progress]:
    from IPython.display import display

    line: Any = display({"text/plain": ""}, raw=True, display_id=True)
    last = 0.0

    def listen(stage: str, done: int, total: int) -> None:
        nonlocal last
        if done == 0 or time.monotonic() - last >= OFTEN:
            last = time.monotonic()
            line.update({"text/plain": f"{stage}: {done} of {total}"}, raw=True)

    try:
        yield Progress(listen)
    finally:
        line.update({"text/plain": ""}, raw=True)
