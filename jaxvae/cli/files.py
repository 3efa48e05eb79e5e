"""Files that appear whole, or not at all."""

from pathlib import Path
from uuid import uuid4

from jaxvae.video import VideoError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place, then move it there.

    Raises:
        VideoError: it cannot be written.
    """
    partial = path.with_name(f".{uuid4().hex}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise VideoError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
