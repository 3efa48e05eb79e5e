"""The folder in which compiled programs are kept between processes.

Not in diffusers. JAX has a cache of compiled programs on disk, which is off until somebody names
its folder. The programs of this model take minutes to compile, so that folder has a default here.
"""

import os
import stat
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import filelock
import jax

VARIABLE = "JAXVAE_CACHE_DIR"
"""The environment variable that names another folder; set to nothing, no default is used."""

LARGEST = 4 << 30
"""Bytes that the folder may hold if JAX has no limit: what was used longest ago goes first."""

_lock = threading.Lock()
_decided = False


def default_folder() -> Path | None:
    """Return $JAXVAE_CACHE_DIR, else `jaxvae` in $XDG_CACHE_HOME or `~/.cache`; None if off."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).expanduser().absolute() if named else None
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "jaxvae"


def use_default_cache() -> None:
    """Name the folder, once in a process, when a model is about to compile its first step.

    What the user has set stays: nothing happens if `jax_compilation_cache_dir` has a value, or
    `jax_enable_compilation_cache` is off. Both belong to the whole process, so programs of others
    that are compiled later are kept too. Several processes may use the folder: JAX locks it where
    its size is limited, as here.

    Entries are code: a folder that others may write to, or that cannot be written, is warned about,
    and programs are not kept.
    """
    global _decided
    with _lock:
        if _decided:
            return
        _decided = True
        if _setting("jax_compilation_cache_dir") is not None:
            return
        if not _setting("jax_enable_compilation_cache"):
            return
        try:
            folder = default_folder()
            if folder is None:
                return
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            _check_owner(folder)
            _mend(folder)
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
            warnings.warn(
                f"jaxvae: compiled programs are not kept, expected a folder to write to ({error});"
                f" name one in {VARIABLE}, or set it to nothing",
                stacklevel=2,
            )
            return
        if _setting("jax_compilation_cache_max_size") < 0:  # no limit, as JAX has it at first
            jax.config.update("jax_compilation_cache_max_size", LARGEST)
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _check_owner(folder: Path) -> None:
    """Raise OSError if another user could put code there."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if os.name == "posix" and (found.st_uid != os.getuid() or mode & 0o022):
        raise PermissionError(
            f"{folder} has mode {mode:o} and owner {found.st_uid}: others may put code there"
        )


def _mend(folder: Path) -> None:
    """See to entries whose time of use is missing: JAX with a limit cannot write beside them.

    JAX writes that time last (jax 0.10.2, `LRUCache.put`), so in a folder that has such times, an
    entry without one is half of what a killed process was writing, and is deleted. A folder without
    any was kept by JAX without a limit: its entries are whole, and get one.
    """
    try:
        with filelock.FileLock(folder / ".lockfile", timeout=1):
            limited = any(folder.glob("*-atime"))
            for entry in folder.glob("*-cache"):
                used = entry.with_name(entry.name.removesuffix("-cache") + "-atime")
                if used.exists():
                    continue
                if limited:
                    entry.unlink()
                else:
                    used.write_bytes(entry.stat().st_mtime_ns.to_bytes(8, "little"))
    except filelock.Timeout:
        pass  # somebody is writing: the next process will look


def _setting(name: str) -> Any:
    return getattr(jax.config, name)
