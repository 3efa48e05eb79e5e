"""Files that are whole or not there: written beside their place, then moved into it."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` in one step."""
    write_all(path.parent, {path.name: text})


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write all files to a temporary folder on the same disk, then move one after another.

    Text is written as UTF-8. Every file in `folder` is whole at any moment, and all are of one run
    but for the instant of the moves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as staging:
        for name, content in files.items():
            with (Path(staging) / name).open("wb") as handle:
                handle.write(_encoded(content))
                handle.flush()
                os.fsync(handle.fileno())
        for name in files:
            (Path(staging) / name).replace(folder / name)


def _encoded(content: str | bytes) -> bytes:
    # half of a surrogate pair has no UTF-8: as an escape it is what JSON calls it
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
