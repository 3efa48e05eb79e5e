"""Files that are whole or not there: written beside their place, then moved into it."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from parity.core.exceptions import InputError


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` in one step."""
    write_all(path.parent, {path.name: text})


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write all files to a temporary folder on the same disk, then move one after another.

    Text is written as UTF-8. Every file in `folder` is whole at any moment, and all are of one run
    but for the instant of the moves.

    Raises:
        InputError: the folder cannot be made, or a file cannot be written. It names where the file
            was to be, not the temporary folder.
    """
    place = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as staging:
            for name, content in files.items():
                place = folder / name
                with (Path(staging) / name).open("wb") as handle:
                    handle.write(_encoded(content))
                    handle.flush()
                    os.fsync(handle.fileno())
            for name in files:
                place = folder / name
                (Path(staging) / name).replace(place)
    except OSError as error:
        raise InputError(f"{place}: cannot be written ({error.strerror or error})") from error


def writable(folder: Path, option: str = "--out") -> Path:
    """Make the folder now: a run of minutes should not end in an error about it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made ({error.strerror}); choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written to; choose another {option}")
    return folder


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of the block for this folder; one that is killed holds nothing.

    Raises:
        InputError: another is in it.
    """
    if sys.platform == "win32":  # a folder has no lock there
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{folder}: another process writes there; choose another") from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _encoded(content: str | bytes) -> bytes:
    # half of a surrogate pair has no UTF-8: as an escape it is what JSON calls it
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
