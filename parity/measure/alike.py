"""An error that all entries have alike, a factor or an offset, behind a reference's poor float32.

Where PyTorch's own error is large, that of a port may be as large and no rounding: roundings differ
from entry to entry, or from row to row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

ROWS = 8
"""Rows, or columns, of which fewer may all have the same rounding by chance."""

SMALL = 64.0
"""Units of roundoff below which such an error may be that of one number that all entries share."""


def alike(
    ref: Array, port: Array, wide: Array, roundings: Sequence[Array] = ()
) -> tuple[float, str]:
    """R of what is alike in the error of all entries, and a text if nearly all of it is.

    The unit is what of the reference's error is, or what roundings that differ by row or by column
    leave of it by chance, on either side; or what is so of `roundings`, the errors that a rounding
    of each operation makes.
    """
    unit = unit_roundoff(ref.dtype)
    x, of_ref, of_port, *more = _sampled(wide, ref, port, *(wide + one for one in roundings))
    if x.size < LEAST:
        return 0.0, ""
    size = _rms(x)
    if not _rms(of_ref) > POOR * unit * size:
        return 0.0, ""
    varied = x - x.mean()
    spread = _rms(varied)
    shapes = np.stack([np.ones_like(x), varied / spread if spread else np.zeros_like(x)])
    its, own, *others = (_Split.of(one, shapes) for one in (of_ref, of_port, *more))
    least = max(its.part, its.chance, own.chance, 4 * unit * size)
    rounded = np.sqrt(sum(one.factors**2 for one in others) / max(len(others), 1))
    r = float(np.linalg.norm(own.factors / np.maximum(rounded, least)))
    if any(1 < count < ROWS for count in x.shape):
        return 0.0, ""  # so few are alike by chance
    if own.share < NEARLY_ALL or its.share > FEW or own.part <= SMALL * unit * size:
        return r if x.size >= MANY else 0.0, ""
    return r, f"nearly all of the error ({own.part / size:.2g} of the size) is alike in all entries"


def _sampled(wide: Array, *arrays: Array) -> list[Array]:
    """`wide` and the distances of the others from it, as a table of rows and channels."""
    channels = wide.shape[-1] if wide.ndim > 1 else wide.size
    tables = [one.reshape(-1, channels) for one in (wide, *arrays)]
    step = -(-wide.size // MOST)
    kind = np.complex128 if wide.dtype.kind == "c" else np.float64
    found = [one[::step].astype(kind) for one in tables]
    finite = np.logical_and.reduce([np.isfinite(one) for one in found])
    x, *others = (np.where(finite, one, 0) for one in found)
    return [x, *(one - x for one in others)]


@dataclass(frozen=True)
class _Split:
    """Of an error, the size of what it is of each shape, what of that may be by chance, and the
    share of its square.
    """

    factors: Array
    chance: float
    share: float

    @property
    def part(self) -> float:
        """The size of what is of the shapes."""
        return float(np.linalg.norm(self.factors))

    @classmethod
    def of(cls, error: Array, shapes: Array) -> "_Split":
        """An error taken apart."""
        each = [error * shape.conj() for shape in shapes]
        factors = [one.mean() for one in each]
        rest = error - sum(f * shape for f, shape in zip(factors, shapes, strict=True))
        left = [rest * shape.conj() for shape in shapes]
        chance = max(math.hypot(*(_chance(one, axis) for one in left)) for axis in (0, 1))
        sizes = np.abs(factors)
        square = max(_rms(error) ** 2, np.finfo(np.float64).tiny)
        return cls(sizes, chance, float((sizes**2).sum()) / square)


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
