"""Videos in files: frames come and go a few at a time, so that a long one needs no memory.

An image is a video of one frame.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
from jaxtyping import Float, UInt8

from jaxvae.io.files import discard
from jaxvae.io.messages import first_line

CODECS = {".mp4": "libx264", ".mov": "libx264", ".mkv": "libx264", ".webm": "libvpx-vp9"}
"""The codec that a file of each kind is written with; `.npy` holds the frames as they are."""

IMAGES = {".png": {}, ".jpg": {"quality": 95}, ".jpeg": {"quality": 95}}
"""How an image of each kind is written."""

CONTAINERS = {
    **dict.fromkeys((".mp4", ".m4v", ".mov"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    **dict.fromkeys((".jpg", ".jpeg"), "jpeg_pipe"),
    **{kind: f"{kind[1:]}_pipe" for kind in (".png", ".bmp", ".webp")},
    ".avi": "avi",
    ".gif": "gif",
}
"""What a file of each kind is opened as: FFmpeg's own guess may be a list of other files."""

MOST_PIXELS = 1 << 24
"""Of a frame, 4096x4096: a codec holds many of them, however little the file takes."""

MOST_IN_IMAGES = 1 << 25
"""Of an image, which is a single one."""

QUALITY = {"libx264": {"crf": "12"}, "libvpx-vp9": {"crf": "15", "b": "0"}}
"""Coding that is hardly visible: what is seen is the autoencoder's."""

UPRIGHT: dict[int, Callable[[Any], Any]] = {
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels.swapaxes(0, 1), 2),
    8: np.rot90,
}
"""What makes an image upright, by its orientation in EXIF."""

BT601, LIMITED = 6, 1
"""Colours and their range, as H.273 numbers the first (SMPTE 170M) and FFmpeg the second."""

RATE = Fraction(24)
"""Frames a second of what does not say."""

Frames = UInt8[np.ndarray, "t h w 3"]


def size_of(text: str) -> tuple[int, int]:
    """Return height and width of text such as 480x720; raise ValueError for other text."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise ValueError(f"{text!r} is not HEIGHTxWIDTH, as in 480x720")
    return int(sides[0]), int(sides[1])


class VideoError(ValueError):
    """A video that cannot be read or written: one line with its path and what to do."""


@dataclass(frozen=True)
class Video:
    """A window of a video file: `frames` from `first` on, `size` pixels from `corner` on.

    An array may hold `floats`, in [-1, 1].
    """

    path: Path
    first: int
    frames: int
    corner: tuple[int, int]
    size: tuple[int, int]
    rate: Fraction
    floats: bool = False

    def window(self, size: tuple[int, int], corner: tuple[int, int] | None = None) -> "Video":
        """Return a smaller window, from `corner` on or in the middle.

        Raises VideoError if it does not lie inside of this one.
        """
        spare = tuple(all_of - part for all_of, part in zip(self.size, size, strict=True))
        top, left = (max(spare[0] // 2, 0), max(spare[1] // 2, 0)) if corner is None else corner
        if top > spare[0] or left > spare[1]:
            raise VideoError(
                f"{self.path}: frames of {self.size[0]}x{self.size[1]} hold no {size[0]}x{size[1]}"
                f" window at row {top}, column {left}; ask for a smaller one"
            )
        return replace(self, corner=(self.corner[0] + top, self.corner[1] + left), size=size)

    def read(self) -> Any:
        """Return all frames at once."""
        return np.concatenate(list(self.parts()))

    def parts(self, length: int = 8) -> Iterator[Frames]:
        """Yield the frames, up to `length` at a time."""
        (top, left), (height, width) = self.corner, self.size
        waiting: list[Any] = []
        left_over = self.frames
        for index, frame in enumerate(_decoded(self.path, self.floats)):
            if index < self.first:
                continue
            window = frame[top : top + height, left : left + width]
            if window.shape[:2] != self.size:
                found = f"{frame.shape[0]}x{frame.shape[1]}"
                raise VideoError(
                    f"{self.path}: frame {index} has {found} pixels, which are less than those"
                    " before: cut the video where its size changes"
                )
            waiting.append(np.array(window))  # a view would hold all of the frame
            left_over -= 1
            if len(waiting) == length or left_over == 0:
                yield np.stack(waiting)
                waiting = []
            if left_over == 0:
                return
        raise VideoError(f"{self.path}: {left_over} frames are missing that were there before")


def find_video(
    path: Path, first: int = 0, frames: int | None = None, *, floats: bool = False
) -> Video:
    """Return the video of a file, in full size: at most `frames` frames from `first` on.

    They are counted by decoding them: what a file says of itself is often wrong. Raises VideoError
    if there is no such file, no video or no frame left, and without `floats` for such an array.
    """
    if not path.is_file():
        raise VideoError(f"{path}: no such file; expected a video or an .npy (frames, h, w, 3)")
    end = None if frames is None else first + frames
    shape, count = None, 0
    for frame in _decoded(path, floats):
        shape = shape or frame.shape[:2]
        count += 1
        if count == end:
            break
    if shape is not None and 0 in shape:
        raise VideoError(f"{path}: frames of {shape[0]}x{shape[1]} hold no pixel")
    if shape is None or count <= first:
        raise VideoError(f"{path}: {count} frames, and none from number {first} on")
    return Video(path, first, count - first, (0, 0), shape, _rate(path), floats)


def _decoded(path: Path, floats: bool) -> Iterator[Any]:
    if _ending(path) == ".npy":
        yield from _array(path, floats)
        return
    image = CONTAINERS.get(_ending(path), "").endswith("_pipe")
    with _opened(path) as container:
        for frame in container.decode(video=0):
            # as a camera was held, which turned the file and not the pixels
            pixels = frame.to_ndarray(format="rgb24")
            # FFmpeg's rotation of an image leaves out that it is mirrored
            yield _upright(path)(pixels) if image else np.rot90(pixels, round(frame.rotation / 90))


def _upright(path: Path) -> Callable[[Any], Any]:
    """What makes an image upright, by what it says of itself in EXIF."""
    pillow = _package("PIL.Image", f"{path}: images need Pillow")
    try:
        with pillow.open(path) as image:
            orientation = image.getexif().get(0x0112)
    except (OSError, SyntaxError, ValueError, struct.error):
        orientation = None  # FFmpeg has read the pixels; what is said of them is broken
    return UPRIGHT.get(orientation, np.asarray)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    av, kind = _av(path), CONTAINERS.get(_ending(path))
    if kind is None:
        known = ", ".join([*CONTAINERS, ".npy"])
        raise VideoError(f"{path}: cannot be read; expected a name that ends in {known}")
    most = MOST_IN_IMAGES if kind.endswith("_pipe") else MOST_PIXELS
    limit = {"max_pixels": str(most)}
    try:
        # a colon would name a protocol
        with av.open(str(path.absolute()), format=kind, options=limit) as container:
            container.streams.video[0].codec_context.options = limit
            yield container
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise VideoError(
            f"{path}: not a video that FFmpeg can read as {path.suffix}, or one of more than {most}"
            f" pixels a frame ({first_line(error)})"
        ) from error


def _array(path: Path, floats: bool) -> Any:
    try:
        with np.errstate(over="raise"):
            array = np.lib.format.open_memmap(path, "r")
    except Exception as error:
        # NumPy reads the header as Python's literals are read: a wrong one raises anything.
        raise VideoError(f"{path}: not a readable .npy file ({first_line(error)})") from error
    shape: tuple[int, ...] = getattr(array, "shape", ())
    video = len(shape) == 4 and shape[3] == 3
    if not video or not (array.dtype == np.uint8 or (floats and array.dtype.kind == "f")):
        found = f"{getattr(array, 'dtype', type(array).__name__)} {shape}"
        kinds = "uint8 or float" if floats else "uint8"
        raise VideoError(f"{path}: expected {kinds} (frames, height, width, 3), found {found}")
    return array


def _rate(path: Path) -> Fraction:
    if _ending(path) == ".npy":
        return RATE
    with _opened(path) as container:
        rate = container.streams.video[0].average_rate
    return Fraction(rate) if rate else RATE


def check_output(path: Path) -> None:
    """Raise VideoError, before anything is computed, for what `Writer` could not write."""
    known = [*CODECS, *IMAGES, ".npy"]
    if _ending(path) not in known:
        raise VideoError(f"{path}: cannot be written; expected one of {', '.join(known)}")
    if not path.parent.is_dir():
        raise VideoError(f"{path}: no such folder; make {path.parent} first")
    if path.is_dir():
        raise VideoError(f"{path}: is a folder; name a file")
    if _ending(path) in CODECS:
        _av(path)
    elif _ending(path) in IMAGES:
        _imageio(path)


class Writer:
    """A video file that appears when all is written: a `with` statement that fails leaves none."""

    def __init__(self, path: Path, frames: int, size: tuple[int, int], rate: Fraction):
        """`frames` of `size` pixels, height and width, `rate` a second."""
        self._path, self._frames, self._size, self._rate = path, frames, size, rate
        self._partial = path.with_name(f".{uuid4().hex}.partial{path.suffix}")
        self._written = 0

    def __enter__(self) -> Self:
        try:
            with self._refusing():
                self._open()
        except BaseException:  # an interrupt too: `__exit__` is not called then
            discard(self._partial)
            raise
        return self

    def _open(self) -> None:
        if _ending(self._path) in IMAGES:
            if self._frames > 1:
                raise VideoError(
                    f"{self._path}: an image cannot hold {self._frames} frames; name a video, or"
                    " ask for one frame"
                )
            return
        if _ending(self._path) == ".npy":
            shape = (self._frames, *self._size, 3)
            self._array = np.lib.format.open_memmap(self._partial, "w+", np.uint8, shape)
            _take(self._partial)
            return
        codec = CODECS[_ending(self._path)]
        self._container = _av(self._path).open(str(self._partial.absolute()), "w")
        self._stream = self._container.add_stream(codec, rate=self._rate)
        self._stream.height, self._stream.width = self._size
        even = self._size[0] % 2 == 0 and self._size[1] % 2 == 0
        self._stream.pix_fmt = "yuv420p" if even else "yuv444p"
        self._stream.options = QUALITY[codec]
        # what FFmpeg makes of RGB, which players take large frames for something else without
        context = self._stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = BT601
        context.color_range = LIMITED

    def write(self, frames: Frames) -> None:
        """Add frames; raise VideoError if they cannot be written, as on a disk that is full."""
        with self._refusing():
            if _ending(self._path) in IMAGES:
                # into memory: a file that it cannot write it tries to close again later
                how = {"extension": _ending(self._path), **IMAGES[_ending(self._path)]}
                made = _imageio(self._path).imwrite("<bytes>", frames[0], **how)
                self._partial.write_bytes(made)
            elif _ending(self._path) == ".npy":
                self._array[self._written : self._written + len(frames)] = frames
            else:
                make = _av(self._path).VideoFrame.from_ndarray
                for frame in frames:
                    picture = make(np.ascontiguousarray(frame), format="rgb24")
                    self._container.mux(self._stream.encode(picture))
        self._written += len(frames)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        failures: tuple[type[Exception], ...] = (OSError,)
        if _ending(self._path) in CODECS:
            failures = (OSError, _av(self._path).FFmpegError)
        try:
            yield
        except failures as error:
            raise VideoError(f"{self._path}: cannot be written ({first_line(error)})") from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # what failed before says more than that the rest cannot be written either
            with self._refusing() if kind is None else suppress(Exception):
                self._close(kind is None)
        finally:
            discard(self._partial)

    def _close(self, whole: bool) -> None:
        if _ending(self._path) == ".npy":
            self._array.flush()
        elif _ending(self._path) in CODECS:
            if whole:
                self._container.mux(self._stream.encode(None))
            self._container.close()
        if whole:
            self._partial.replace(self._path)


def to_pixels(frames: Float[np.ndarray, "t h w 3"]) -> Frames:
    """Return values in [-1, 1] as 8 bits; what lies outside is cut off."""
    pixels: Frames = np.round((np.clip(frames, -1, 1) + 1) * 127.5).astype(np.uint8)
    return pixels


def from_pixels(frames: Frames) -> Float[np.ndarray, "t h w 3"]:
    """Return float32 values in [-1, 1]."""
    values: Float[np.ndarray, "t h w 3"] = frames.astype(np.float32) / np.float32(127.5)
    return values - np.float32(1)


def _ending(path: Path) -> str:
    return path.suffix.lower()


def _av(path: Path) -> Any:
    return _package("av", f"{path}: video needs PyAV")


def _imageio(path: Path) -> Any:
    return _package("imageio.v3", f"{path}: images need imageio")


def _package(name: str, needed: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise VideoError(f"{needed}; pip install 'nnx-parity[video]'") from error


def _take(path: Path) -> None:
    """Take the room for all of a file, on systems that can: a write to a mapped one that finds none
    ends the process.
    """
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
