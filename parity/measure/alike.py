"""An error that all entries have alike, a factor or an offset, behind a reference's poor float32.

Where PyTorch's own error is large, that of a port may be as large and no rounding: roundings differ
from entry to entry, or from row to row.
"""

import math

import numpy as np

from parity.core.arrays import Array
from parity.core.metrics import unit_roundoff

POOR = 16.0
"""Units of roundoff from float64 above which a reference excuses more than a few roundings."""

LEAST = 16
"""Entries that tell what all have alike."""

MANY = 256
"""Entries that tell it of a part of an error, where the rest is rounding."""

MOST = 1 << 20
"""Entries that are looked at."""

NEARLY_ALL = 0.99
"""Part of an error's square that is no rounding, if so much of it is alike in all entries, and of
the reference's less than `FEW`."""

FEW = 0.5
"""See `NEARLY_ALL`."""

ROWS = 8
"""Rows, or columns, of which fewer may all have the same rounding by chance."""

SMALL = 64.0
"""Units of roundoff below which such an error may be that of one number that all entries share."""


def alike(ref: Array, port: Array, wide: Array) -> tuple[float, str]:
    """R of what is alike in the error of all entries, and a text if nearly all of it is.

    The unit is what of the reference's error is, or what roundings that differ by row or by column
    leave of it by chance, on either side.
    """
    unit = unit_roundoff(ref.dtype)
    x, of_ref, of_port = _sampled(wide, ref, port)
    if x.size < LEAST:
        return 0.0, ""
    size = _rms(x)
    if not _rms(of_ref) > POOR * unit * size:
        return 0.0, ""
    varied = x - x.mean()
    spread = _rms(varied)
    shapes = np.stack([np.ones_like(x), varied / spread if spread else np.zeros_like(x)])
    (ref_part, ref_chance, ref_share), (part, chance, share) = (
        _split(error, shapes) for error in (of_ref, of_port)
    )
    r = part / max(ref_part, ref_chance, chance, 4 * unit * size)
    if any(1 < count < ROWS for count in x.shape):
        return 0.0, ""  # so few are alike by chance
    if share < NEARLY_ALL or ref_share > FEW or part <= SMALL * unit * size:
        return r if x.size >= MANY else 0.0, ""
    return r, f"nearly all of the error ({part / size:.2g} of the size) is alike in all entries"


def _sampled(wide: Array, ref: Array, port: Array) -> tuple[Array, Array, Array]:
    """`wide` and the distances of the others from it, as a table of rows and channels."""
    channels = wide.shape[-1] if wide.ndim > 1 else wide.size
    tables = [one.reshape(-1, channels) for one in (wide, ref, port)]
    step = -(-wide.size // MOST)
    kind = np.complex128 if wide.dtype.kind == "c" else np.float64
    x, a, b = (one[::step].astype(kind) for one in tables)
    finite = np.isfinite(x) & np.isfinite(a) & np.isfinite(b)
    x, a, b = (np.where(finite, one, 0) for one in (x, a, b))
    return x, a - x, b - x


def _split(error: Array, shapes: Array) -> tuple[float, float, float]:
    """The size of what an error is of the shapes, what it may be by chance, and its share."""
    each = [error * shape.conj() for shape in shapes]
    factors = [one.mean() for one in each]
    rest = error - sum(f * shape for f, shape in zip(factors, shapes, strict=True))
    left = [rest * shape.conj() for shape in shapes]
    part = math.hypot(*map(abs, factors))
    chance = max(math.hypot(*(_chance(one, axis) for one in left)) for axis in (0, 1))
    return part, chance, part**2 / max(_rms(error) ** 2, np.finfo(np.float64).tiny)


def _chance(values: Array, axis: int) -> float:
    """The standard error of the mean of values that differ by row, or by column, or by some of them
    that follow one another.
    """
    means, found = values.mean(axis), 0.0
    while True:
        found = max(found, _rms(means) / math.sqrt(means.size))
        if means.size < 2 * ROWS:
            return found
        half = means.size // 2
        means = (means[: 2 * half : 2] + means[1 : 2 * half : 2]) / 2


def _rms(array: Array) -> float:
    return float(np.sqrt((np.abs(array) ** 2).mean()))
