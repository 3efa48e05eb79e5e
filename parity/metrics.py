"""Distances between two arrays: in float64, in blocks that stay in the processor's cache."""

from typing import Any

import numpy as np
from jaxtyping import Shaped

from parity.records import Metrics

Array = Shaped[np.ndarray, "..."]

BLOCK = 1 << 15
"""Elements at a time: a handful of float64 temporaries of this length fit a 2 MiB cache."""

_SHIFT = 47  # keeps 5 bits of mantissa: bins are 3 % wide
_FIRST = (1023 - 110) << (52 - _SHIFT)  # what is below 2**-110 counts as nothing,
_BINS = 160 << (52 - _SHIFT)  # what is above 2**50 as 2**50

MANTISSA = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of mantissa, the hidden one included."""

SMALLEST = {"float64": -1021, "float32": -125, "float16": -13, "bfloat16": -125}
"""Exponent (as `frexp` counts it) of the smallest normal number."""


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """`u`: 2**-24 for float32, 2**-8 for bfloat16; complex as its parts; 0 for exact types."""
    name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)
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
    total = _Sums(ref.dtype)
    a, b = ref.reshape(-1), port.reshape(-1)
    for start in range(0, a.size, BLOCK):
        total.add(a[start : start + BLOCK], b[start : start + BLOCK], start)
    return total.metrics(ref.shape)


def distance(ref: Array, port: Array) -> tuple[float, float, int]:
    """(mae, rel_l2, nonfinite) of `compare_arrays`, for a fifth of the time."""
    a, b = ref.reshape(-1), port.reshape(-1)
    absolute = squares = reference = 0.0
    nonfinite = size = 0
    for start in range(0, a.size, BLOCK):
        x, y = _wide(a[start : start + BLOCK]), _wide(b[start : start + BLOCK])
        x, y, bad, skipped = _finite(x, y)
        nonfinite += bad
        size += x.size - skipped
        gap = np.abs(y - x)
        absolute += float(gap.sum())
        squares += _power(gap)
        reference += _power(x)
    if nonfinite:
        return float("inf"), float("inf"), nonfinite
    if size == 0:
        return float("nan"), float("nan"), 0
    return absolute / size, ratio(squares**0.5, reference**0.5), 0


def rms_distance(ref: Array, other: Array) -> tuple[float, float]:
    """Root mean square of `other - ref` and of `ref`; infinite where finiteness differs."""
    _, relative, nonfinite = distance(ref, other)
    norm = rms(ref)
    if nonfinite:
        return float("inf"), norm
    if norm == 0.0:
        return rms(other), norm
    return relative * norm, norm


def rms(array: Array) -> float:
    """Root mean square of the finite entries."""
    flat, total = array.reshape(-1), 0.0
    for start in range(0, flat.size, BLOCK):
        block = _wide(flat[start : start + BLOCK])
        total += _power(block[np.isfinite(block)])
    return float((total / flat.size) ** 0.5) if flat.size else float("nan")


def ratio(part: float, whole: float) -> float:
    """`part / whole`, where nothing of nothing is 0 and something of nothing infinite."""
    if whole == 0.0:
        return 0.0 if part == 0.0 else float("inf")
    return part / whole


class _Sums:
    """Running sums over blocks."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)
        self.mantissa, self.smallest = MANTISSA.get(name), SMALLEST.get(name)
        self.size = self.nonfinite = self.worst = 0
        self.absolute = self.squares = self.most = 0.0
        self.ref_absolute = self.ref_squares = self.ref_most = 0.0
        self.port_squares = self.product = 0.0
        self.gaps = np.zeros(_BINS, np.int64)
        self.ulps = np.zeros(_BINS, np.int64)

    def add(self, ref: Array, port: Array, start: int) -> None:
        x, y, bad, skipped = _finite(_wide(ref), _wide(port))
        gap, size = np.abs(y - x), np.abs(x)
        self.size += gap.size - skipped
        self.nonfinite += bad
        at = int(gap.argmax())
        if gap[at] > self.most or start == 0:
            self.most, self.worst = float(gap[at]), start + at
        self.absolute += float(gap.sum())
        self.squares += _power(gap)
        self.ref_absolute += float(size.sum())
        self.ref_squares += _power(size)
        self.ref_most = max(self.ref_most, float(size.max()))
        self.port_squares += _power(y)
        self.product += float((x * y.conj()).real.sum())
        self.gaps += _histogram(gap)
        if self.mantissa is not None and self.smallest is not None:
            self.ulps += _histogram(gap * _per_ulp(size, self.mantissa, self.smallest))

    def metrics(self, shape: tuple[int, ...]) -> Metrics:
        n, nan, inf = self.size, float("nan"), float("inf")
        if n == 0 and not self.nonfinite:
            return Metrics(nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, (), 0)
        n = max(n, 1)
        index = tuple(int(i) for i in np.unravel_index(self.worst, shape))
        ref_rms = (self.ref_squares / n) ** 0.5
        if self.nonfinite:
            return Metrics(
                inf, inf, inf, inf, inf, inf, inf, inf, nan, ref_rms, index, self.nonfinite
            )
        lengths = (self.ref_squares * self.port_squares) ** 0.5
        return Metrics(
            mae=self.absolute / n,
            mse=self.squares / n,
            max_abs=self.most,
            rel_mae=ratio(self.absolute, self.ref_absolute),
            rel_l2=ratio(self.squares**0.5, self.ref_squares**0.5),
            rel_linf=ratio(self.most, self.ref_most),
            p999=min(_percentile(self.gaps, 0.999), self.most),
            ulp_p99=_percentile(self.ulps, 0.99) if self.mantissa is not None else nan,
            cosine=self.product / lengths if lengths else nan,
            ref_rms=ref_rms,
            worst_index=index,
            nonfinite=0,
        )


def _wide(block: Array) -> Array:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)


def _power(block: Array) -> float:
    # not `dot`: BLAS threads cost more than they save here, and the pairwise sum is more exact
    return float((block * block.conj()).real.sum())


def _finite(x: Array, y: Array) -> tuple[Array, Array, int, int]:
    """Both blocks with zeros for what is not finite; how many of these differ, how many do not."""
    if np.isfinite(x.sum()) and np.isfinite(y.sum()):
        return x, y, 0, 0
    fine = np.isfinite(x) & np.isfinite(y)
    alike = fine | (x == y) | (np.isnan(x) & np.isnan(y))
    bad = int(alike.size - alike.sum())
    return np.where(fine, x, 0), np.where(fine, y, 0), bad, int(alike.size - fine.sum()) - bad


def _per_ulp(size: Array, mantissa: int, smallest: int) -> Array:
    """1 / (unit in the last place of a `mantissa`-bit number of that size), from its exponent."""
    exponent = np.maximum((size.view(np.int64) >> 52) - 1023, smallest - 1)
    scale: Array = ((1023 + mantissa - 1 - exponent) << 52).view(np.float64)
    return scale


def _histogram(values: Array) -> Array:
    bins = (values.view(np.int64) >> _SHIFT) - _FIRST
    counts: Array = np.bincount(np.clip(bins, 0, _BINS - 1), minlength=_BINS)
    return counts


def _percentile(counts: Array, fraction: float) -> float:
    """Upper edge of the bin that holds the percentile; 0 for the bin of zeros."""
    at = int(np.searchsorted(np.cumsum(counts), fraction * counts.sum()))
    edge = (_FIRST + at + 1) << _SHIFT if at else 0
    return float(np.array([edge], np.int64).view(np.float64)[0])
