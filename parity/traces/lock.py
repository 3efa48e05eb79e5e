"""One recording at a time in a folder: two would give their files the same names."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parity.core.exceptions import InputError

NAME = ".recording"

CHOOSE = "choose another --out"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder until the end of the `with` statement, or of the process, if that is killed.

    Raises:
        InputError: another recording holds it, or nothing can be written to it or locked.
    """
    path = folder / NAME
    try:
        file = path.open("a")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); {CHOOSE}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # who held it before has removed the file: another may have a new one by now
            held = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
        except BlockingIOError:
            held = False
        except OSError as error:
            raise InputError(f"{path}: cannot be locked ({error.strerror}); {CHOOSE}") from error
        if not held:
            raise InputError(
                f"{folder}: another recording writes to it; wait for its end, or {CHOOSE}"
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
