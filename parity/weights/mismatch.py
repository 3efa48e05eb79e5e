"""Findings on tensors whose values are the reference's in no order of axes."""

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from parity.core.metrics import compare_arrays
from parity.core.tensors import Array, Tensor
from parity.weights.axis_order import constant, regroups, same_values, usual_order
from parity.weights.in_pieces import Owners

PARTLY = 0.1
"""Part of the entries that are equal in two arrays that have to do with each other."""

SAMPLE = 1 << 12
"""Entries that tell whether a type can hold them, before all are looked at."""


def finding(ref: Tensor, port: Tensor, owners: Owners) -> tuple[str, str]:
    """(cause, what is wrong); both tensors have the same size."""
    ref_values, port_values = ref.read(), port.read()
    for text, values in _flipped(ref_values):
        if same_values(values, port_values) is not None:
            return "weights_layout", text
    if np.array_equal(ref_values.reshape(-1), port_values.reshape(-1)):
        return "weights_layout", "reshaped to fit, its axes not permuted"
    if port_values.size > 1 and constant(port_values):
        what = f"every entry is {port_values.flat[0].item():g}, as if never loaded"
        return ("norm_buffers" if ref.buffer else "weights_missing"), what
    for dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)):
        if ref_values.dtype.kind == "f" and _rounded(ref_values, port_values, dtype):
            return "weights_precision", f"rounded to {dtype.name}"
    same = owners.of(port_values)
    if ref in same:
        return "weights_layout", "holds its values in another order, which is none of the axes"
    if same:
        return "weights_swapped", f"holds the values of {same[0].full_name}{same[0].part or ''}"
    return _unlike(ref.buffer, ref_values, port_values)


def _flipped(values: Array) -> Iterator[tuple[str, Array]]:
    for count in range(1, max(values.ndim - 1, 1)):
        for axes in itertools.combinations(range(2, values.ndim), count):
            yield f"flipped along axes {axes}", np.flip(values, axes)
    if values.ndim == 1:
        yield "in opposite order", values[::-1]


def _rounded(ref: Array, port: Array, dtype: np.dtype[Any]) -> bool:
    sample = port.reshape(-1)[:SAMPLE]
    with np.errstate(over="ignore"):  # to infinity, as the port would
        if not np.array_equal(sample.astype(dtype).astype(sample.dtype), sample):
            return False
        return same_values(ref.astype(dtype).astype(ref.dtype), port) is not None


def _unlike(buffer: bool, ref: Array, port: Array) -> tuple[str, str]:
    """Values that are no known change of the reference's: how far off, in the likeliest order."""
    moved = next(ref.transpose(axes) for axes in _orders(ref, port))
    found = compare_arrays(np.asarray(moved, order="C"), port.reshape(moved.shape))
    size, cosine = found.rel_l2, found.cosine
    cause = "norm_buffers" if buffer else "weights_value"
    if not ref.any():
        return cause, "not 0 everywhere as it should be"
    if found.nonfinite:
        return cause, f"{found.nonfinite} entries differ in being finite"
    equal = float((moved == port.reshape(moved.shape)).mean())
    if buffer and not equal:
        factor = _factor(moved, port.reshape(moved.shape))
        text = f"{factor:.6g} times the reference's" if factor else f"off by {size:.2g} of its size"
        return cause, text
    if buffer or equal > PARTLY:
        return cause, f"{100 * (1 - equal):.3g} % of its entries differ"
    if abs(cosine) < 0.9 and ref.ndim > 1:
        return "weights_missing", f"unrelated to the reference's (cosine {cosine:.2f})"
    return "weights_value", f"off by {size:.2g} of its size (cosine {cosine:.4f})"


def _orders(ref: Array, port: Array) -> Iterator[tuple[int, ...]]:
    """Orders of axes that fit; where none does, the entries are compared as they come."""
    usual = usual_order(ref.ndim)
    for axes in (usual, *itertools.permutations(range(ref.ndim))):
        if regroups(tuple(ref.shape[i] for i in axes), port.shape):
            yield axes
    yield tuple(range(ref.ndim))


def _factor(ref: Array, port: Array) -> float:
    """The one factor between all entries, 0 if there is none."""
    finite = np.isfinite(ref).all() and np.isfinite(port).all()
    if ref.ndim != 1 or ref.dtype.kind != "f" or not (finite and ref.all()):
        return 0.0
    factors = port.astype(np.float64) / ref.astype(np.float64)
    mean = float(factors.mean())
    return mean if np.ptp(factors) < 1e-4 * abs(mean) else 0.0
