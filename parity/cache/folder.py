"""The folder in which recordings of references are kept, and how much of it.

An entry is a folder named by its key, with a pack for the recorded calls and others for what was
found in float64. Each is made beside its place and moved there in one step, so that several
processes may use the folder, and one that is killed leaves nothing that is taken for whole.
"""

import errno
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from parity.cache.pack import INDEX
from parity.core.exceptions import InputError

VARIABLE = "PARITY_CACHE_DIR"
"""The environment variable that names another folder."""

LIMIT = "PARITY_CACHE_GIB"
"""The one that says how large it may be."""

LARGEST = 10.0
"""GiB unless it does."""

CALLS = "calls"

_PARTIAL, _GONE = ".writing-", ".gone-"

_KEY = re.compile("[0-9a-f]{64}")
"""How an entry is called; what has another name is somebody else's and stays."""

_ABANDONED = 3600.0
"""Seconds after which what nobody goes on writing is what a killed process left."""


def default_folder() -> Path:
    """Return $PARITY_CACHE_DIR, else `parity` in $XDG_CACHE_HOME or `~/.cache`."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "parity"


class Folder:
    """The folder, made if need be.

    Raises:
        InputError: it cannot be used, or others may write to it.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._begun: list[Path] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
            found = path.stat()
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
            raise InputError(
                f"{path}: expected a folder for the cache ({error}); name one in {VARIABLE}"
            ) from error
        mode = stat.S_IMODE(found.st_mode)
        if os.name == "posix" and (found.st_uid != os.getuid() or mode & 0o022):
            raise InputError(
                f"{path}: has mode {mode:o} and owner {found.st_uid}, so others may write what the"
                f" reference is said to do; chmod 700, or name another folder in {VARIABLE}"
            )

    def packs(self, key: str) -> list[Path]:
        """The packs of an entry, the oldest first; it counts as used now."""
        entry = self.path / key
        with suppress(FileNotFoundError):
            os.utime(entry)
            return sorted(path for path in entry.iterdir() if not path.name.startswith("."))
        return []

    def begin(self) -> Path:
        """An empty folder to write a pack into."""
        owner = f"{_host()}-{os.getpid()}"
        partial = self.path / f"{_PARTIAL}{owner}-{secrets.token_hex(8)}"
        self._begun.append(partial)  # before it is there: an interrupt may come any time
        partial.mkdir(mode=0o700)
        return partial

    def end(self) -> None:
        """Remove what was begun and is not in its place."""
        while self._begun:
            self.drop(self._begun[-1])
            self._begun.pop()

    def keep(self, partial: Path, key: str, name: str) -> bool:
        """Move a whole pack to its place, and make room; whether it is the one that is there."""
        assert (partial / INDEX).exists()
        entry = self.path / key
        try:
            entry.mkdir(exist_ok=True)
            partial.rename(entry / name)
            os.utime(entry)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False  # another process was first, or has just made room
        self._make_room()
        return True

    def forget(self, key: str) -> None:
        """Remove an entry."""
        gone = self.path / f"{_GONE}{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):
            (self.path / key).rename(gone)  # nobody finds half of it
            self.drop(gone)

    def drop(self, folder: Path) -> None:
        """Remove what is no entry."""
        for _ in range(3):  # somebody may be moving a pack into it
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return

    def size(self, key: str) -> int:
        """Bytes that an entry holds."""
        return _size(self.path / key)

    def _make_room(self) -> None:
        """Remove what was used longest ago until the rest is within the limit."""
        ages: dict[Path, float] = {}
        total = 0
        for path in self.path.iterdir():
            with suppress(FileNotFoundError):
                if path.name.startswith((_PARTIAL, _GONE)):
                    if path.name.startswith(_GONE) or _is_abandoned(path):
                        self.drop(path)
                elif _KEY.fullmatch(path.name) and path.is_dir():
                    ages[path] = path.stat().st_mtime
                else:
                    continue
            total += _size(path)
        for path in sorted(ages, key=lambda path: ages[path])[:-1]:
            if total <= self.limit:
                return
            total -= _size(path)
            self.forget(path.name)


def open_folder() -> Folder:
    """The folder that the environment names, with its limit.

    Raises:
        InputError: either cannot be used.
    """
    text = os.environ.get(LIMIT) or LARGEST
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise InputError(f"{LIMIT}={text}: expected a number of GiB")
    try:
        folder = default_folder()
    except RuntimeError as error:  # there is no home
        raise InputError(f"no folder for the cache ({error}); name one in {VARIABLE}") from error
    return Folder(folder, int(limit * 2**30))


def _host() -> str:
    """The machine as the name of a folder has it."""
    return re.sub("[^0-9A-Za-z]", "", platform.node())


def _is_abandoned(partial: Path) -> bool:
    """Whether nobody goes on writing: its process is gone, or has not written for long."""
    host, _, rest = partial.name.removeprefix(_PARTIAL).partition("-")
    pid = rest.partition("-")[0]
    if host == _host() and pid.isdigit() and not _runs(int(pid)):
        return True
    newest = max((path.stat().st_mtime for path in partial.rglob("*")),
                 default=partial.stat().st_mtime)  # fmt: skip
    return time.time() - newest > _ABANDONED


def _runs(pid: int) -> bool:
    """Whether there is such a process here."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def _size(folder: Path) -> int:
    """Bytes in a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(place, name).lstat().st_size
    return total
