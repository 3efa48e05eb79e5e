"""Arrays in safetensors files of bounded size, named by their digests.

An equal array of another shape is the same one. Each file is written beside its place, then moved
there; its SHA-256 goes into the index.
"""

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from parity.core.codec import stored_as
from parity.core.exceptions import InputError, shown
from parity.core.store import Buffer

Array = Shaped[np.ndarray, "..."]

PATTERN = re.compile(r"\d{5}\.safetensors")
"""Names of shards: nothing outside the folder has such a name."""

DIGEST = re.compile(r"[0-9a-f]{32}")

DIMENSIONS = 32
"""Of an array, at most: every NumPy has them."""

NATIVE = frozenset(
    ["bfloat16", "bool", "complex64", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""Types that the files have and NumPy can read from them; arrays of others are stored as bytes."""


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of that name, bfloat16 and its like among them.

    Raises:
        InputError: it is no type of numbers.
    """
    small = getattr(ml_dtypes, str(name), None)
    if isinstance(small, type) and issubclass(small, np.generic):
        return np.dtype(small)
    if str(name) not in NATIVE | {"complex128"}:
        raise InputError(f"{shown(name)} is no type of numbers")
    return np.dtype(name)


@dataclass(frozen=True)
class Form:
    """Shape and type of a stored array, and the digest that names it."""

    digest: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(metadata=stored_as(attrgetter("name"), dtype_of))

    def __post_init__(self) -> None:
        if len(self.shape) > DIMENSIONS or any(not 0 <= size < 1 << 48 for size in self.shape):
            raise InputError(f"{self.shape} is no shape of an array")
        if not DIGEST.fullmatch(self.digest):
            raise InputError(f"{shown(self.digest)} is no digest of an array")

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def text(self) -> str:
        """Type and shape, as messages have them."""
        return f"{self.dtype.name}{list(self.shape)}"

    def adds_to(self, other: "Form") -> bool:
        """True of a difference in float64 as a trace stores that of the other array."""
        kind = "complex64" if other.dtype.kind == "c" else "float32"
        return (self.shape, self.dtype.name) == (other.shape, kind)


@dataclass(frozen=True)
class Shard:
    """One file: its name, length in bytes and SHA-256."""

    name: str
    nbytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not PATTERN.fullmatch(self.name):
            raise InputError(f"names {shown(self.name)}, which is no file of a trace; refused")


class ToWrite(dict[str, tuple[Form, Callable[[], Array]]]):
    """Arrays to be written, each read when its file is; by digest, so that equal ones are one."""

    def add(self, digest: bytes, array: Array | Buffer, read: Callable[[], Array]) -> Form:
        """The form of an array, which is to be written."""
        form = Form(digest.hex(), tuple(array.shape), array.dtype)
        self.setdefault(form.digest, (form, read))
        return form


def write(folder: Path, names: Iterator[str], arrays: ToWrite, size: int) -> tuple[Shard, ...]:
    """Write the arrays to files of these `names`, of at most `size` bytes each, or of one array."""
    batches: list[ToWrite] = []
    total = 0
    for digest, (form, read) in arrays.items():
        total += form.nbytes
        if not batches or total > size:
            batches.append(ToWrite())
            total = form.nbytes
        batches[-1][digest] = form, read
    return tuple(_write_one(folder / next(names), batch) for batch in batches)


def _write_one(path: Path, batch: ToWrite) -> Shard:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        save_file({name: _plain(form, read()) for name, (form, read) in batch.items()}, partial)
        partial.chmod(mode)  # the library's files are for their owner alone
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        shard = Shard(path.name, partial.stat().st_size, sha256(partial))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return shard


def _plain(form: Form, array: Array) -> Array:
    array = np.ascontiguousarray(array).reshape(form.shape)
    return array if form.dtype.name in NATIVE else array.reshape(-1).view(np.uint8)


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem(folder: Path, shard: Shard) -> str:
    """The reason why the file is not the one that was written, `""` if it is."""
    path = folder / shard.name
    if not path.is_file():
        return f"{path}: the index names it, and there is no such file"
    found = path.stat().st_size
    if found != shard.nbytes:
        return f"{path}: expected {shard.nbytes} bytes, found {found}: truncated or written to"
    if sha256(path) != shard.sha256:
        return f"{path}: its content is not what was recorded (SHA-256 differs)"
    return ""


class Reader:
    """Reads arrays by digest; a file is open only while one is read."""

    def __init__(self, folder: Path, shards: Iterable[Shard]) -> None:
        """Find the arrays of the files.

        Raises:
            InputError: a file is none of arrays.
        """
        self._files: dict[str, Path] = {}
        for path in (folder / shard.name for shard in shards):
            with _opened(path) as handle:
                self._files |= dict.fromkeys(handle.keys(), path)

    def __contains__(self, digest: str) -> bool:
        return digest in self._files

    def read(self, form: Form) -> Array:
        """A copy of the array.

        Raises:
            InputError: no file has it, or what is there has another form.
        """
        path = self._files.get(form.digest)
        if path is None:
            raise InputError(f"no file of the trace has array {form.digest}; record it again")
        # an open file is mapped, and what was read of it would stay in memory
        with _opened(path) as handle:
            array = handle.get_tensor(form.digest)
        native = form.dtype.name in NATIVE
        if array.nbytes != form.nbytes or array.dtype != (form.dtype if native else np.uint8):
            raise InputError(
                f"{path}: expected array {form.digest} to be {form.text},"
                f" found {array.dtype.name}{list(array.shape)}; record it again"
            )
        array = array if native else array.reshape(-1).view(form.dtype)
        return np.asarray(array.reshape(form.shape))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="np") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be read ({error}); record it again") from error
