"""Distances between two arrays: in float64, in blocks that stay in the processor's cache."""

from typing import Any

import numpy as np
from jaxtyping import Shaped

from parity.core.measurements import Metrics

Array = Shaped[np.ndarray, "..."]

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
    total = _Sums(ref.dtype, port.dtype)
    a, b = ref.reshape(-1), port.reshape(-1)
    for start in range(0, a.size, BLOCK):
        total.add(a[start : start + BLOCK], b[start : start + BLOCK], start)
    return total.metrics(ref.shape)


def distance(ref: Array, port: Array) -> tuple[float, float, int]:
    """(mae, rel_l2, nonfinite) of `compare_arrays`, for a third of the time."""
    a, b = ref.reshape(-1), port.reshape(-1)
    absolute = squares = reference = 0.0
    nonfinite = size = 0
    scratch = _Scratch(ref.dtype, port.dtype)
    for start in range(0, a.size, BLOCK):
        x, _, gap, bad, skipped = scratch.gap(a[start : start + BLOCK], b[start : start + BLOCK])
        nonfinite += bad
        size += x.size - skipped
        absolute += float(gap.sum())
        squares += scratch.power(gap)
        reference += scratch.power(np.abs(x, out=gap))
    if nonfinite:
        return float("inf"), float("inf"), nonfinite
    if size == 0:
        return float("nan"), float("nan"), 0
    return absolute / size, ratio(squares**0.5, reference**0.5), 0


def triangle(ref: Array, port: Array, wide: Array) -> tuple[float, float, float]:
    """rms of port - wide, of ref - wide and of `wide`, over what is finite in all three."""
    a, b, c = ref.reshape(-1), port.reshape(-1), wide.reshape(-1)
    of_port = of_ref = of_wide = 0.0
    size = 0
    first, second = _Scratch(ref.dtype, wide.dtype), _Scratch(port.dtype, wide.dtype)
    for start in range(0, a.size, BLOCK):
        x, y, z = (array[start : start + BLOCK] for array in (a, b, c))
        if not all(np.isfinite(block).all() for block in (x, y, z)):
            fine = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
            x, y, z = (np.where(fine, block, 0) for block in (x, y, z))
            size -= int(fine.size - fine.sum())
        size += x.size
        of_ref += first.power(first.gap(z, x)[2])
        _, _, gap, _, _ = second.gap(z, y)
        of_port += second.power(gap)
        of_wide += second.power(np.abs(second.x[: z.size], out=gap))
    if size == 0:
        return float("nan"), float("nan"), float("nan")
    return (of_port / size) ** 0.5, (of_ref / size) ** 0.5, (of_wide / size) ** 0.5


def rms(array: Array) -> float:
    """Root mean square of the finite entries."""
    flat, total, scratch = array.reshape(-1), 0.0, _Scratch(array.dtype)
    size = flat.size
    for start in range(0, flat.size, BLOCK):
        block = scratch.x[: flat[start : start + BLOCK].size]
        block[...] = flat[start : start + BLOCK]
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            finite = np.isfinite(block.sum())
        if not finite:
            fine = np.isfinite(block)
            size -= int(fine.size - fine.sum())
            block = np.where(fine, block, 0)
        total += scratch.power(np.abs(block, out=scratch.size[: block.size]))
    return float((total / size) ** 0.5) if size else float("nan")


def ratio(part: float, whole: float) -> float:
    """`part / whole`, where nothing of nothing is 0 and something of nothing infinite."""
    if whole == 0.0:
        return 0.0 if part == 0.0 else float("inf")
    return part / whole


class _Sums:
    """Running sums over blocks."""

    def __init__(self, dtype: np.dtype[Any], other: np.dtype[Any]) -> None:
        name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)
        self.mantissa, self.smallest = MANTISSA.get(name), SMALLEST.get(name)
        self.size = self.nonfinite = self.worst = 0
        self.absolute = self.squares = self.most = 0.0
        self.ref_absolute = self.ref_squares = self.ref_most = 0.0
        self.port_squares = self.product = 0.0
        self.gaps = np.zeros(_BINS, np.int64)
        self.ulps = np.zeros(_BINS, np.int64)
        self.scratch = _Scratch(dtype, other)

    def add(self, ref: Array, port: Array, start: int) -> None:
        x, y, gap, bad, skipped = self.scratch.gap(ref, port)
        self.size += gap.size - skipped
        self.nonfinite += bad
        at = int(gap.argmax())
        if gap[at] > self.most or start == 0:
            self.most, self.worst = float(gap[at]), start + at
        self.absolute += float(gap.sum())
        self.squares += self.scratch.power(gap)
        self.gaps += self.scratch.histogram(gap)
        # the order matters: each line below may overwrite what the lines above have used
        self.product += self.scratch.product(x, y)
        size = np.abs(y, out=self.scratch.size[: y.size])
        self.port_squares += self.scratch.power(size)
        size = np.abs(x, out=size)
        self.ref_absolute += float(size.sum())
        self.ref_squares += self.scratch.power(size)
        self.ref_most = max(self.ref_most, float(size.max()))
        if self.mantissa is not None and self.smallest is not None:
            gap *= self.scratch.per_ulp(size, self.mantissa, self.smallest)
            self.ulps += self.scratch.histogram(gap)

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


class _Scratch:
    """Temporaries of one block, kept: a new one of this size costs more than what is done in it."""

    def __init__(self, *dtypes: np.dtype[Any]) -> None:
        wide = np.complex128 if any(dtype.kind == "c" for dtype in dtypes) else np.float64
        self.x, self.y = np.empty(BLOCK, wide), np.empty(BLOCK, wide)
        self.wide = np.empty(BLOCK, wide)
        self.gaps, self.size = np.empty(BLOCK), np.empty(BLOCK)
        self.squares = np.empty(BLOCK)
        self.bits = np.empty(BLOCK, np.int64)

    def gap(self, ref: Array, port: Array) -> tuple[Array, Array, Array, int, int]:
        """(ref, port, |port - ref|, entries finite in one only, entries alike but not finite)."""
        n = ref.size
        x, y = self.x[:n], self.y[:n]
        x[...], y[...] = ref, port
        bad = skipped = 0
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            fine = np.isfinite(x.sum()) and np.isfinite(y.sum())
        if not fine:
            x, y, bad, skipped = _finite(x, y)
        difference = np.subtract(y, x, out=self.wide[:n])
        return x, y, np.abs(difference, out=self.gaps[:n]), bad, skipped

    def power(self, block: Array) -> float:
        """Sum of squares."""
        # not `dot`: BLAS threads cost more than they save, and the pairwise sum is more exact
        return float(np.multiply(block, block, out=self.squares[: block.size]).sum())

    def product(self, x: Array, y: Array) -> float:
        """Real part of the sum of x times the conjugate of y."""
        other = y.conj() if y.dtype.kind == "c" else y
        return float(np.multiply(x, other, out=self.wide[: x.size]).sum().real)

    def histogram(self, values: Array) -> Array:
        """Number of values in each bin."""
        bins = np.right_shift(values.view(np.int64), _SHIFT, out=self.bits[: values.size])
        bins -= _FIRST
        counts: Array = np.bincount(np.clip(bins, 0, _BINS - 1, out=bins), minlength=_BINS)
        return counts

    def per_ulp(self, size: Array, mantissa: int, smallest: int) -> Array:
        """1 / (unit in the last place of a `mantissa`-bit number of that size)."""
        bits = np.right_shift(size.view(np.int64), 52, out=self.bits[: size.size])
        np.maximum(bits, smallest - 1 + 1023, out=bits)
        # the exponent e becomes that of 2**(mantissa - 1 - e), biased by 1023 like e itself
        np.subtract(2 * 1023 + mantissa - 1, bits, out=bits)
        scale: Array = np.left_shift(bits, 52, out=bits).view(np.float64)
        return scale


def _finite(x: Array, y: Array) -> tuple[Array, Array, int, int]:
    """Both blocks with zeros for what is not finite; how many of these differ, how many do not."""
    fine = np.isfinite(x) & np.isfinite(y)
    alike = fine | (x == y) | (np.isnan(x) & np.isnan(y))
    bad = int(alike.size - alike.sum())
    return np.where(fine, x, 0), np.where(fine, y, 0), bad, int(alike.size - fine.sum()) - bad


def _percentile(counts: Array, fraction: float) -> float:
    """Upper edge of the bin that holds the percentile; 0 for the bin of zeros."""
    at = int(np.searchsorted(np.cumsum(counts), fraction * counts.sum()))
    edge = (_FIRST + at + 1) << _SHIFT if at else 0
    return float(np.array([edge], np.int64).view(np.float64)[0])
