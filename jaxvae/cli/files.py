"""Files that appear whole, or not at all, and never in place of what they are made from."""

from pathlib import Path
from uuid import uuid4

from jaxvae.io.files import discard
from jaxvae.io.video import VideoError


def refuse_source(source: Path, target: Path) -> None:
    """Raise VideoError if what is read would be written over, under whatever name."""
    if source.exists() and target.exists() and source.samefile(target):
        raise VideoError(f"{target}: is what is read; expected another file to write to")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place, then move it there; raise VideoError if that fails."""
    partial = path.with_name(f".{uuid4().hex}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise VideoError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        discard(partial)
