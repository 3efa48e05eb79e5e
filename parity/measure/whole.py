"""Whole numbers and truths that are made of rounded floats: where rounding decides them.

A rounding, a nearest code or a comparison takes the other side where the reference's own float64
run does, or one with a few roundings more; and of equal numbers either may be the largest.
"""

from collections.abc import Sequence

import numpy as np

from parity.core.arrays import Array

SAMPLES = 8
"""Runs with a few roundings more, of which one has the other side of nearly all that is near it."""

MISSED = 0.05
"""Part of the entries that are near the other side of which no run had it."""


def decided(ref: Array, port: Array, seen: Sequence[Array], sources: Sequence[Array]) -> Array:
    """The port's array with the reference's entries where rounding decides them.

    `seen` are the reference's in other runs, and `sources` what its code got.
    """
    if ref.dtype.kind not in "biu" or ref.shape != port.shape:
        return port
    off = ref != port
    explained = np.zeros(ref.shape, bool)
    for one in seen:
        if one.shape == ref.shape:
            explained |= off & (one == port)
    left = int((off & ~explained).sum())
    if left <= MISSED * int(explained.sum()) or any(_tied(ref, port, one) for one in sources):
        explained = off
    return np.where(explained, ref, port)


def _tied(ref: Array, port: Array, source: Array) -> bool:
    """True if both are indices along some axis of an array, of the same numbers in it."""
    if source.dtype.kind not in "fV" or ref.dtype.kind == "b":
        return False
    for axis in range(source.ndim):
        rest = source.shape[:axis] + source.shape[axis + 1 :]
        a, b = (np.expand_dims(x, axis) if x.shape == rest else x for x in (ref, port))
        if a.ndim != source.ndim or a.shape[:axis] + a.shape[axis + 1 :] != rest:
            continue
        if all(_picks(one, source.shape[axis], axis) for one in (a, b)):
            one, other = (np.take_along_axis(source, x.astype(np.int64), axis) for x in (a, b))
            return bool(np.array_equal(one, other))
    return False


def _picks(index: Array, length: int, axis: int) -> bool:
    """True for indices of that many entries, none of them twice in a line."""
    ordered = np.sort(index, axis)
    twice = (np.diff(ordered, axis=axis) == 0).any()
    return bool(index.size and ordered.min() >= 0 and ordered.max() < length and not twice)
