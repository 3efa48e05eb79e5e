"""Files that are removed again."""

from contextlib import suppress
from pathlib import Path


def discard(path: Path) -> None:
    """Remove a file that may be there; where none can be removed, none could be written."""
    with suppress(OSError):
        path.unlink()
