"""The noise floor: how far PyTorch itself is from float64 on the same inputs.

    R = rms(port - ref64) / max(rms(ref - ref64), 4u * rms(ref64))

R near 1 means: as accurate as PyTorch. Where PyTorch is poor, R is that of a factor or an offset in
all entries, if that is larger: see `alike`.
"""

from typing import Any

import ml_dtypes
import numpy as np

from parity.core.arrays import Array
from parity.core.measurements import Error
from parity.core.metrics import distance, ratio, triangle, unit_roundoff
from parity.core.problems import Problem, ProblemKind, other_shape
from parity.measure.alike import alike
from parity.measure.channels import worst_channel
from parity.measure.masks import unmasked

LONG = 16.0
"""The root of how many terms a sum may have before more than four roundings are allowed for."""


def score(ref: Array, port: Array, wide: Array | None = None, terms: float = 0.0) -> Error:
    """Distance of `port` from `ref`, and R if the float64 result `wide` is given.

    `terms` is the size of what `wide` is a sum of, where that is known: a sum whose terms cancel
    has their roundings, not its own.
    """
    if ref.shape != port.shape:
        inf = float("inf")
        return Error(inf, inf, 0, problem=other_shape(ref.shape, port.shape))
    ref, port = unmasked(ref, port)
    mae, rel_l2, nonfinite = distance(ref, port)
    if wide is None or wide.shape != ref.shape or nonfinite or ref.dtype.kind not in "fcV":
        return Error(mae, rel_l2, nonfinite)
    wide = _held(wide, ref.dtype)
    port_error, ref_error, norm = triangle(ref, port, wide)
    norm = max(norm, terms)
    # the reference's type: a port that computes in a coarser one is not as accurate
    floor = max(ref_error, 4 * unit_roundoff(ref.dtype) * norm)
    channel = worst_channel(ref, port, wide)
    same_r, same = alike(ref, port, wide) if port_error > 0 else (0.0, "")
    return Error(
        mae,
        rel_l2,
        nonfinite,
        floor_rel_l2=ratio(ref_error, norm),
        r=max(ratio(port_error, floor), same_r),
        moved=ref_error == 0.0,
        part=str(channel or same),
    )


def _held(wide: Array, kind: np.dtype[Any]) -> Array:
    """The float64 result with what the type cannot hold at its limits: `torch.finfo(x.dtype).min`,
    with which masks are made, is another number in float64.
    """
    if kind.kind == "c":
        return wide
    limit = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    over = np.isfinite(wide) & (np.abs(wide) > limit)
    return np.where(over, np.copysign(limit, wide), wide) if over.any() else wide


COARSE = 1024.0
"""Units of roundoff of the reference's type from which on an error may be that of a type of fewer
bits, ..."""

MOST = 2.0**-6
"""... and part of the size up to which it may be."""

NEARER = 16.0
"""How many times nearer to float64 a port is that does not round so."""


def rounded_alone(ref: Array, port: Array, wide: Array) -> Problem | None:
    """The problem of a port that does not round to fewer bits where the reference does: to be
    nearer to float64 is to differ then.

    It is to be asked only of a call in whose code the reference rounds so.
    """
    if ref.shape != port.shape or wide.shape != ref.shape or ref.dtype.kind not in "fcV":
        return None
    port_error, ref_error, norm = triangle(ref, port, wide)
    if not COARSE * unit_roundoff(ref.dtype) * norm < ref_error < MOST * norm:
        return None
    if not port_error < ref_error / NEARER:
        return None
    text = f"the reference alone rounds to fewer bits ({ref_error / norm:.2g} of the size)"
    return Problem(ProblemKind.FEWER_BITS, text)


def of_sum(terms: float, count: int) -> float:
    """The size of `count` terms of a sum, for `score`: one after the other they have more roundings
    than four, about as the root of their number (see `docs/thresholds.md`).
    """
    return float(terms * max(1.0, count**0.5 / LONG))


def bounded(rel_l2: float, limit: float, dtype: np.dtype[Any]) -> bool:
    """True if the relative distance from the reference alone shows that R <= `limit`.

    rms(port - ref64) <= rms(port - ref) + rms(ref - ref64), and the denominator of R is at least
    each of rms(ref - ref64) and 4u rms(ref64), so R <= 1 + rel_l2 (1 + 1/4u).
    """
    unit = unit_roundoff(dtype)
    return unit > 0 and rel_l2 * (1 + 1 / (4 * unit)) + 1 <= limit
