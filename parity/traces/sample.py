"""What a trace of statistics keeps of an array: figures of all its entries, and some of these.

Entries are drawn by a fixed seed, one from each of equal stretches: a plane, an edge or a channel
that is wrong shows in its share of them.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int64

from parity.traces.shards import Array
from parity.core.metrics import rms

KEPT = 4096
"""Entries of an array. One that has no more is kept as it is. What is wrong in one of 1000 entries
shows with a probability of 98 %."""


@dataclass(frozen=True)
class Figures:
    """Of an array: mean, root mean square, extremes of its finite entries, NaN if there are none,
    and how many others there are.
    """

    mean: float
    rms: float
    least: float
    most: float
    nonfinite: int


def large(size: int) -> bool:
    """Whether not all entries of an array are kept."""
    return size > KEPT


def count(size: int) -> int:
    """How many entries of an array of that size are kept."""
    return min(size, KEPT)


@lru_cache(64)
def places(size: int) -> Int64[np.ndarray, " n"]:
    """Which entries of a flat array of that size are kept, in order."""
    if not large(size):
        return np.arange(size, dtype=np.int64)
    edges = np.arange(KEPT + 1, dtype=np.int64) * size // KEPT
    # NumPy promises that these numbers stay the same, and of its other random ones does not
    drawn = np.random.PCG64(0).random_raw(KEPT) % np.diff(edges).astype(np.uint64)
    found: Int64[np.ndarray, " n"] = edges[:-1] + drawn.astype(np.int64)
    return found


def kept(array: Array) -> Array:
    """The entries that are kept, flat."""
    entries: Array = np.ascontiguousarray(array).reshape(-1)[places(array.size)]
    return entries


def figures(array: Array) -> Figures:
    """Those of an array; of a complex one mean, least and most are those of the magnitudes."""
    real = np.abs(array) if array.dtype.kind == "c" else array
    if real.dtype.kind not in "biuf":
        real = real.astype(np.float32)  # bfloat16 and its like
    fine = np.isfinite(real)
    nonfinite = int(real.size - np.count_nonzero(fine))
    if nonfinite == real.size:
        return Figures(*4 * (float("nan"),), nonfinite)
    finite = real[fine] if nonfinite else real
    return Figures(
        mean=float(finite.mean(dtype=np.float64)),
        rms=rms(array),
        least=float(finite.min()),
        most=float(finite.max()),
        nonfinite=nonfinite,
    )
