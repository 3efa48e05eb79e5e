"""The location of an error in an array: a border, some frames, channels, rows, or everywhere."""

import numpy as np

from parity.capture.layout import AXES
from parity.core.arrays import Array

SHARE = 0.999
"""A part of an array holds the error if this much of its square is there."""


def location(ref: Array, port: Array, *, named: bool = True) -> str:
    """A phrase such as "only in row 15 of 16", for channel-last arrays; "" if none fits.

    Of other arrays axes are not `named` but numbered.
    """
    if ref.shape != port.shape or ref.ndim == 0:
        return ""
    gap = np.abs(port.astype(np.float64) - ref.astype(np.float64)) ** 2
    total = float(gap.sum())
    if not np.isfinite(total) or total == 0.0:
        return ""
    border = _border(gap, total) if named else ""
    return _along_axes(gap, total, named) or border or _everywhere(ref, port)


def _along_axes(gap: Array, total: float, named: bool) -> str:
    parts = []
    numbers = tuple(f"entry of axis {i}" for i in range(gap.ndim))
    names = AXES.get(gap.ndim, numbers) if named else numbers
    for axis, name in enumerate(names):
        size = gap.shape[axis]
        if size < 3:
            continue
        along = gap.sum(tuple(i for i in range(gap.ndim) if i != axis))
        busy = np.flatnonzero(along > (1 - SHARE) * total / size)
        if 0 < busy.size <= max(size // 2, 1) and along[busy].sum() >= SHARE * total:
            which = ", ".join(map(str, busy[:4])) + (", ..." if busy.size > 4 else "")
            parts.append(f"{name} {which} of {size}")
    return f"only in {' and '.join(parts)}" if parts else ""


def _border(gap: Array, total: float) -> str:
    axes = {5: (2, 3), 4: (1, 2)}.get(gap.ndim)
    if axes is None or min(gap.shape[axis] for axis in axes) < 5:
        return ""
    for width in (1, 2, 3):
        if 2 * width + 1 >= min(gap.shape[axis] for axis in axes):
            return ""
        inner = [slice(None)] * gap.ndim
        for axis in axes:
            inner[axis] = slice(width, -width)
        if float(gap[tuple(inner)].sum()) <= (1 - SHARE) * total:
            return f"only in a border {width} wide"
    return ""


def _everywhere(ref: Array, port: Array) -> str:
    if np.array_equal(np.sort(ref, axis=None), np.sort(port, axis=None)):
        return "the same values in another order"
    return "everywhere"
