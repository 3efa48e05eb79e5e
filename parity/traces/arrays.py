"""The arrays of a trace: each in a safetensors file that the digest of its content names.

A file is written beside its place, then moved there. So it is whole whatever happened to the
recording that wrote it, and of two recordings either writes the same.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from parity.core.exceptions import InputError, first_line
from parity.core.store import TYPES, Array, Buffer, digest

FOLDER = "arrays"

NATIVE = TYPES - {"complex128"} | {"bfloat16"}
"""Types that the files have and NumPy can read from them; arrays of others are stored as bytes."""

HEADER = 1 << 16
"""Bytes that a file takes at most beside its array."""

AGAIN = "record it again with `parity record`"


class ArrayFolder:
    """The folder of arrays in that of a trace."""

    def __init__(self, trace: Path) -> None:
        self._folder = trace / FOLDER
        self._checked: dict[bytes, tuple[int, int, int]] = {}

    def put(self, array: Array) -> Buffer:
        """Write an array."""
        return self.keep(Buffer(digest(array), np.shape(array), array.dtype), lambda _: array)

    def keep(self, buffer: Buffer, read: Callable[[Buffer], Array]) -> Buffer:
        """Write an array that `read` has, unless an equal one is there."""
        path = self.path(buffer)
        if not path.is_file():
            self._folder.mkdir(exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            try:
                partial.touch()
                mode = partial.stat().st_mode
                array = np.ascontiguousarray(read(buffer)).reshape(buffer.shape)
                native = buffer.dtype.name in NATIVE
                save_file({"array": array if native else array.reshape(-1).view("u1")}, partial)
                partial.chmod(mode)  # the library's files are for their owner alone
                partial.replace(path)
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path}: cannot be written ({first_line(error)})") from error
            finally:
                with suppress(OSError):  # where none can be removed, none was written
                    partial.unlink()
        return buffer

    def read(self, buffer: Buffer) -> Array:
        """A copy of the array.

        Raises:
            InputError: no file has it, or what is there is not what was recorded.
        """
        path = self.path(buffer)
        if not path.is_file():
            raise InputError(f"{path}: the index names it, and there is no such file; {AGAIN}")
        array = np.empty(0, "u1")
        try:
            about = path.stat()
            if about.st_size <= buffer.nbytes + HEADER:  # what does not fit takes no memory
                with safe_open(path, framework="np") as handle:
                    array = np.asarray(handle.get_tensor("array"))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: truncated or changed ({error}); {AGAIN}") from error
        array = array.reshape(-1)
        if array.nbytes == buffer.nbytes:
            array = array.view(buffer.dtype)
            mark = about.st_ino, about.st_mtime_ns, about.st_size
            if self._checked.get(buffer.digest) == mark or digest(array) == buffer.digest:
                self._checked[buffer.digest] = mark
                return array.reshape(buffer.shape)
        raise InputError(f"{path}: its content is not the {buffer.text} that was recorded; {AGAIN}")

    def find(self, buffer: Buffer) -> Array | None:
        """As `read`; `None` if no file has it."""
        return self.read(buffer) if self.path(buffer).is_file() else None

    def path(self, buffer: Buffer) -> Path:
        """The file that an array is in."""
        return self._folder / f"{buffer.digest.hex()}.safetensors"
