"""Changes that are undone whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` where the block ends, and once more: an interrupt may have broken it off."""
    try:
        try:
            yield
        finally:
            undo()
    finally:
        undo()
