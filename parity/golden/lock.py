"""One recording at a time in a folder: two would give their files the same names."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parity.errors import InputError

NAME = ".recording"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder until the end of the `with` statement, or of the process, if that is killed.

    Raises:
        InputError: another recording holds it.
    """
    path = folder / NAME
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # whoever held it before has removed the file: another may have a new one by now
            mine = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
        except BlockingIOError:
            mine = False
        if not mine:
            raise InputError(
                f"{folder}: another recording writes to it; wait for its end, or choose another"
                " --out"
            )
        try:
            yield
        finally:
            path.unlink()
