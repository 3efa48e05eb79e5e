"""The picture of an error map as a PNG, which shows where no script runs too."""

import base64
import struct
import zlib
from typing import NamedTuple

import numpy as np

from parity.core.error_map import ErrorMap

VIRIDIS = (
    *("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c"),
    *("#28ae80", "#5ec962", "#addc30", "#fde725"),
)
"""Colours from the smallest error to the largest."""


MOST = 1 << 31
"""Cells along an axis: a file may say anything."""


class Picture(NamedTuple):
    """The worst image of an error map as a `data:` URL, the errors of its first and last colour,
    its width by its height, and what its axes are.
    """

    url: str
    low: float
    high: float
    aspect: float
    axes: str


def picture(error_map: ErrorMap) -> Picture:
    """A pixel for each cell; those that are not finite are left empty."""
    heat = np.array(error_map.heat, np.float64)
    finite = np.isfinite(heat)
    low, high = (heat[finite].min(), heat[finite].max()) if finite.any() else (np.nan, np.nan)
    with np.errstate(all="ignore"):  # a file may say anything
        at = np.where(finite, heat - low, 0) / (high - low if high > low else 1)
    colours = np.array([tuple(bytes.fromhex(colour[1:])) for colour in VIRIDIS])
    stops = np.linspace(0, 1, len(colours))
    at = np.nan_to_num(at)
    pixels = np.stack([*(np.interp(at, stops, part) for part in colours.T), 255 * finite], axis=-1)
    down, across = (min(max(size, 1), MOST) for size in error_map.heat_size)
    named = zip(("down", "across"), error_map.heat_axes, error_map.heat_size, strict=True)
    return Picture(
        "data:image/png;base64," + base64.b64encode(_png(pixels.round().astype(np.uint8))).decode(),
        float(low),
        float(high),
        min(max(across / down, 1 / 4), 4) if error_map.heat_axes[0] == "row" else 1.4,
        "; ".join(f"{way}: {axis or 'one line'} 0 to {size - 1}" for way, axis, size in named),
    )


def _png(pixels: np.ndarray) -> bytes:
    """Red, green, blue and opacity of each pixel as a file; no line of it is filtered."""
    high, wide, _ = pixels.shape
    lines = np.pad(pixels.reshape(high, -1), ((0, 0), (1, 0)))
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", wide, high, 8, 6, 0, 0, 0),
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
