"""Distances between two arrays: in float64, in blocks that stay in the processor's cache."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from parity.core.measurements import Metrics
from parity.core.store import Array

BLOCK = 1 << 16
"""Elements at a time: a handful of float64 temporaries of this length fit a 4 MiB cache, and two
threads do not wait for the interpreter between the operations on them."""

_SHIFT = 47  # keeps 5 bits of mantissa: bins are 3 % wide
_FIRST = (1023 - 110) << (52 - _SHIFT)  # what is below 2**-110 counts as nothing,
_BINS = 160 << (52 - _SHIFT)  # what is above 2**50 as 2**50

MANTISSA = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of mantissa, the hidden one included."""

SMALLEST = {"float64": -1021, "float32": -125, "float16": -13, "bfloat16": -125}
"""Exponent (as `frexp` counts it) of the smallest normal number."""


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """`u`: 2**-24 for float32, 2**-8 for bfloat16; complex as its parts; 0 for exact types."""
    return roundoff(dtype.name)


def roundoff(dtype: str) -> float:
    """`unit_roundoff` of a type by its name, as reports give it."""
    name = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    return 2.0 ** -MANTISSA[name] if name in MANTISSA else 0.0


def compare_arrays(ref: Array, port: Array) -> Metrics:
    """All distances of `port` from `ref`; NaN where no entry is finite: that says nothing.

    `rel_mae`, `rel_l2` and `rel_linf` divide by mean |ref|, rms(ref) and max |ref|. `p999` and
    `ulp_p99` are percentiles, 3 % coarse, of |port - ref| and of the same in units in the last
    place of the reference. Entries that are not finite, alike on both sides, are left out; if
    they are not alike they count in `nonfinite` and make every distance infinite.

    Raises:
        ValueError: the shapes differ.
    """
    if ref.shape != port.shape:
        raise ValueError(f"cannot compare shapes {ref.shape} and {port.shape}")
    name = {"complex64": "float32", "complex128": "float64"}.get(ref.dtype.name, ref.dtype.name)
    sums, gaps, ulps = np.zeros(6), np.zeros(_BINS, np.int64), np.zeros(_BINS, np.int64)
    start = size = nonfinite = worst = 0
    most = ref_most = 0.0
    for x, y, gap, bad, skipped in _pairs(ref, port):
        length, other = np.abs(x), np.abs(y)
        terms = (gap, gap * gap, length, length * length, other * other, (x * y.conj()).real)
        sums += [term.sum() for term in terms]
        at = int(gap.argmax())
        if gap[at] > most or start == 0:
            most, worst = float(gap[at]), start + at
        ref_most = max(ref_most, float(length.max()))
        gaps += _histogram(gap)
        if name in MANTISSA:
            ulps += _histogram(gap * _per_ulp(length, name))
        start, size = start + gap.size, size + gap.size - skipped
        nonfinite += bad
    nan, inf = float("nan"), float("inf")
    if size == 0 and not nonfinite:
        return Metrics(nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, (), 0)
    absolute, squares, ref_absolute, ref_squares, port_squares, product = map(float, sums)
    index = tuple(int(i) for i in np.unravel_index(worst, ref.shape))
    ref_rms = (ref_squares / max(size, 1)) ** 0.5
    if nonfinite:
        return Metrics(inf, inf, inf, inf, inf, inf, inf, inf, nan, ref_rms, index, nonfinite)
    lengths = (ref_squares * port_squares) ** 0.5
    return Metrics(
        mae=absolute / size,
        mse=squares / size,
        max_abs=most,
        rel_mae=ratio(absolute, ref_absolute),
        rel_l2=ratio(squares**0.5, ref_squares**0.5),
        rel_linf=ratio(most, ref_most),
        p999=min(_percentile(gaps, 0.999), most),
        ulp_p99=_percentile(ulps, 0.99) if name in MANTISSA else nan,
        cosine=product / lengths if lengths else nan,
        ref_rms=ref_rms,
        worst_index=index,
        nonfinite=0,
    )


def distance(ref: Array, port: Array) -> tuple[float, float, int]:
    """(mae, rel_l2, nonfinite) of `compare_arrays`, for a third of the time."""
    absolute = squares = reference = 0.0
    nonfinite = size = 0
    for x, _, gap, bad, skipped in _pairs(ref, port):
        nonfinite += bad
        size += gap.size - skipped
        absolute += float(gap.sum())
        squares += _power(gap)
        reference += _power(x)
    if nonfinite:
        return float("inf"), float("inf"), nonfinite
    if size == 0:
        return float("nan"), float("nan"), 0
    return absolute / size, ratio(squares**0.5, reference**0.5), 0


def triangle(ref: Array, port: Array, wide: Array) -> tuple[float, float, float]:
    """rms of port - wide, of ref - wide and of `wide`, over what is finite in all three."""
    sums, size = np.zeros(3), 0
    for x, y, z in _blocks(ref, port, wide):
        fine = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
        if not fine.all():
            x, y, z = x[fine], y[fine], z[fine]
        size += x.size
        sums += [_power(y - z), _power(x - z), _power(z)]
    of_port, of_ref, of_wide = (float(total / size) ** 0.5 if size else math.nan for total in sums)
    return of_port, of_ref, of_wide


def rms(array: Array) -> float:
    """Root mean square of the finite entries."""
    total, size = 0.0, 0
    for (block,) in _blocks(array):
        fine = block[np.isfinite(block)]
        total += _power(fine)
        size += fine.size
    return (total / size) ** 0.5 if size else math.nan


def zero_signs(array: Array) -> Array:
    """Whether each zero in an array of floats is negative; empty for other types."""
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array).view(array.real.dtype)
    zeros = array[array == 0] if array.dtype.kind in "fV" else np.zeros(0)
    return np.signbit(zeros)


def ratio(part: float, whole: float) -> float:
    """`part / whole`, where nothing of nothing is 0 and something of nothing infinite."""
    if whole == 0.0:
        return 0.0 if part == 0.0 else float("inf")
    return part / whole


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Blocks of all of them in float64, or in complex128 if one is complex."""
    wide = np.complex128 if any(array.dtype.kind == "c" for array in arrays) else np.float64
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield tuple(array[start : start + BLOCK].astype(wide) for array in flat)


def _pairs(ref: Array, port: Array) -> Iterator[tuple[Array, Array, Array, int, int]]:
    """By block (ref, port, |port - ref|, entries finite in one only, alike but not finite).

    What is not finite is 0 in them.
    """
    for x, y in _blocks(ref, port):
        fine = np.isfinite(x) & np.isfinite(y)
        bad = skipped = 0
        if not fine.all():
            alike = fine | (x == y) | (np.isnan(x) & np.isnan(y))
            bad, skipped = int((~alike).sum()), int((alike & ~fine).sum())
            x, y = np.where(fine, x, 0), np.where(fine, y, 0)
        yield x, y, np.abs(y - x), bad, skipped


def _power(block: Array) -> float:
    """Sum of squares."""
    # not `dot`: BLAS threads cost more than they save, and the pairwise sum is more exact
    return float((np.abs(block) ** 2 if block.dtype.kind == "c" else block * block).sum())


def _histogram(values: Array) -> Array:
    """Number of values in each bin."""
    bins = (values.view(np.int64) >> _SHIFT) - _FIRST
    counts: Array = np.bincount(bins.clip(0, _BINS - 1), minlength=_BINS)
    return counts


def _per_ulp(size: Array, name: str) -> Array:
    """1 / (unit in the last place of a number of that type and size)."""
    exponents = np.maximum(size.view(np.int64) >> 52, SMALLEST[name] - 1 + 1023)
    # the exponent e becomes that of 2**(mantissa - 1 - e), biased by 1023 like e itself
    scale: Array = ((2 * 1023 + MANTISSA[name] - 1 - exponents) << 52).view(np.float64)
    return scale


def _percentile(counts: Array, fraction: float) -> float:
    """Upper edge of the bin that holds the percentile; 0 for the bin of zeros."""
    at = int(np.searchsorted(np.cumsum(counts), fraction * counts.sum()))
    edge = (_FIRST + at + 1) << _SHIFT if at else 0
    return float(np.array([edge], np.int64).view(np.float64)[0])
