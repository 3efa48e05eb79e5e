"""One gradient of one call, on both sides, and how far they are from each other."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parity.core.calls import Match
from parity.core.measurements import Error
from parity.core.metrics import ratio, rms, unit_roundoff
from parity.core.problems import not_measured
from parity.core.tensors import Array
from parity.measure.noise import score

KINK = 0.01
"""Relative error above which it is not asked whether a gradient jumps where rounding decides: one
entry of a mask makes less of it."""

ENTRY = 10.0
"""Units of R by which one entry is off before it may be a jump."""

AS_FAR = 2.0
"""A jump may be so many times what was seen to jump there."""

FEW = 0.5
"""Share of the entries that may jump: a factor, or another formula, moves all."""

STRAINED = 0.25
"""Share of its limit from which R is looked at again: below what is a WARN."""

ENOUGH, MOST = 16, 0.8
"""Of so many entries, a difference of which a factor explains this share is one."""

JUMPS = "is over the limit, but a few roundings move as much of this gradient, in most entries"

NOT_AGAIN = "not measured: the port did not make this call again on the reference's inputs"


@dataclass(frozen=True)
class Subject:
    """One gradient of one call.

    `ref`, `port` and `wide` are the reference's, the port's and the reference's in float64, of the
    call's own code; `terms` is the size of what the latter is a sum of, and `jump` how far a few
    roundings move each entry; R above `limit` fails. `whole` is the port's with
    all that is inside the call, `free` that of the port alone, which is
    compared with `total` if `ref` is but a share of that, and `given` the array that it is
    the gradient of. `name` is that of an input or a tensor, or, of what is handed back, of an
    output of the call inside. `problem` says why there is no gradient.
    """

    match: Match
    name: str
    ref: Array
    port: Array | None
    wide: Array | None = None
    terms: float = 0.0
    jump: Array | None = None
    limit: float = math.inf
    whole: Array | None = None
    free: Array | None = None
    total: Array | None = None
    given: Array | None = None
    problem: str = ""

    @cached_property
    def own(self) -> Error:
        """The error of the call's own code."""
        if self.port is None or self.problem:
            return Error.unknown(self.problem or NOT_AGAIN)
        return scored(self.ref, self.port, self.wide, self.terms, self.jump, self.limit)

    @property
    def strained(self) -> bool:
        """Whether it may matter how many roundings it has."""
        return self.wide is not None and is_strained(self.own, self.limit)

    @property
    def doubtful(self) -> bool:
        """Whether it matters if the gradient jumps.

        A small error that fails may be a jump; one that does not may be a factor, where the
        reference itself has jumped and is no measure.
        """
        error = self.own
        if self.port is None or self.wide is None or not error.rel_l2 < KINK:
            return False
        coarse = strict(error, self.ref) > self.limit
        return small(error, self.limit) or (coarse and is_factor(self.port, self.wide))


def scored(
    ref: Array,
    port: Array,
    wide: Array | None,
    terms: float = 0.0,
    jump: Array | None = None,
    limit: float = math.inf,
) -> Error:
    """As an output is, but that gradients of data that is only moved are summed: never exact.

    A small error over the `limit` is none where the gradient `jump`s: if few entries are off, and
    no more than they jump. A factor is no jump. Where many jump it cannot be told.
    """
    error = score(ref, port, wide, terms).of_subtree()
    if jump is None or wide is None or not error.rel_l2 < KINK or not jump.any():
        return error
    if strict(error, ref) > limit and is_factor(port, wide):
        return replace(error, r=strict(error, ref))
    if not error.r > limit:
        return error
    unit = 4 * unit_roundoff(ref.dtype) * max(rms(wide), terms)
    gap = np.abs(port.astype(wide.dtype) - wide)
    excused = (gap > ENTRY * unit) & (gap <= AS_FAR * jump)
    rest = error.r * ratio(rms(np.where(excused, 0, gap)), rms(gap))
    if excused.mean() <= FEW and rest <= limit:
        return replace(error, r=rest)
    if widened(ref, port, wide, terms, rms(jump)).r > limit:
        return error
    problem = not_measured(f"R {error.r:.3g} {JUMPS}")
    return Error(error.mae, error.rel_l2, 0, problem=problem)


def widened(ref: Array, port: Array, wide: Array | None, terms: float, jump: float) -> Error:
    """As `scored`, where a small error may be as large as a `jump`, wherever it is."""
    error = score(ref, port, wide, terms)
    if jump and error.rel_l2 < KINK:
        error = score(ref, port, wide, max(terms, jump / (4 * unit_roundoff(ref.dtype))))
    return error.of_subtree()


def is_factor(port: Array, wide: Array) -> bool:
    """Whether a factor explains most of what a gradient is off by."""
    gap = port.astype(wide.dtype) - wide
    lengths = rms(gap) * rms(wide)
    shared = abs(complex(np.mean(gap * np.conj(wide)))) if gap.size >= ENOUGH else 0.0
    return bool(lengths) and (shared / lengths) ** 2 > MOST


def strict(error: Error, ref: Array) -> float:
    """R, where the reference's own distance from float64 does not count."""
    unit = 4 * unit_roundoff(ref.dtype)
    return error.r * max(1.0, error.floor_rel_l2 / unit) if unit else error.r


def is_strained(error: Error, limit: float) -> bool:
    """Whether an error is near its limit, or the reference far from float64."""
    return error.unsteady or error.r > STRAINED * limit


def small(error: Error, limit: float) -> bool:
    """Whether an error that fails may be that of a few entries."""
    return error.r > limit and error.rel_l2 < KINK and not error.nonfinite
