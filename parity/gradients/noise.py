"""One gradient of one call on both sides, its error, and the noise that is allowed for.

All numbers of the gradients' noise are here; `docs/thresholds.md` has those of the forward pass.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parity.core.calls import Match
from parity.core.measurements import Error
from parity.core.metrics import ratio, rms, unit_roundoff
from parity.core.problems import not_measured
from parity.core.tensors import Array
from parity.measure.noise import score

SHAKES = 4
"""How often numbers are shaken to see whether a gradient jumps: to either side, twice."""

SHAKEN = 16.0
"""By how many roundings: more than what lies between numbers and a kink, by which another order of
summation may take the other side."""

STEPS = (2.0**-20, 2.0**-24)
"""By how much numbers inside a backward pass are changed, relatively: in float64 all else is less.
"""

AS_MUCH = 2.0
"""Changes by the smaller step, in its units, may be so many times those by the larger: more is a
mask or a maximum that takes the other side."""

CANCELS = 4.0
"""A gradient that roundings inside the pass move so many times their own size has cancelled there:
the terms that arrive do not show it."""

NEARER = 0.1
"""A call's local error is downgraded if all that it passes back is nearer by this factor, or right
by any measure: what jumps, on either side, makes R small where the same error is still there."""

KINK = 0.01
"""Relative error above which it is not asked whether a gradient jumps where rounding decides: one
entry of a mask makes less of it."""

ENTRY = 10.0
"""Units of R by which one entry is off before it may be a jump."""

AS_FAR = 2.0
"""A jump may be so many times what was seen to jump there."""

FEW = 0.5
"""Share of the entries that may jump: a factor, or another formula, moves all."""

ENOUGH, MOST = 16, 0.8
"""Of so many entries, a difference of which a factor explains this share is one."""

JUMPS = "is over the limit, but a few roundings move as much of this gradient, in most entries"

NOT_AGAIN = "not measured: the port did not make this call again on the reference's inputs"

RANDOM = "not measured: PyTorch is far from its own float64 run: random, or in train mode?"


@dataclass(frozen=True)
class Subject:
    """One gradient of one call.

    `ref`, `port` and `wide` are the reference's, the port's and the reference's in float64, of the
    call's local code; `terms` is the size of the terms of the latter, and `jump` how far a few
    roundings move each entry; R above `limit` fails. `whole` is the port's with all that is inside
    the call, `free` that of the port alone, which is compared with `total` if `ref` is but a share
    of that, and `given` the array that it is the gradient of. `name` is that of an input, a tensor,
    or an output of a call inside to which the gradient is passed back. `problem` says why there is
    no gradient.
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
        """The local error of the call."""
        if self.port is None or self.problem:
            return Error.unknown(self.problem or NOT_AGAIN)
        return scored(self.ref, self.port, self.wide, self.terms, self.jump, self.limit)

    @property
    def doubtful(self) -> bool:
        """True if it matters whether the gradient jumps.

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
    """The error of a gradient. Those of data that is only moved are summed: never exact.

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
    jumped = (gap > ENTRY * unit) & (gap <= AS_FAR * jump)
    rest = error.r * ratio(rms(np.where(jumped, 0, gap)), rms(gap))
    if jumped.mean() <= FEW and rest <= limit:
        return replace(error, r=rest)
    if widened(ref, port, wide, terms, rms(jump)).r > limit:
        return error
    problem = not_measured(f"R {error.r:.3g} {JUMPS}")
    return Error(error.mae, error.rel_l2, 0, problem=problem)


def widened(ref: Array, port: Array, wide: Array | None, terms: float, jump: float) -> Error:
    """The error, where a small one may be as large as a `jump`, wherever it is."""
    error = score(ref, port, wide, terms)
    if jump and error.rel_l2 < KINK:
        error = score(ref, port, wide, max(terms, jump / (4 * unit_roundoff(ref.dtype))))
    return error.of_subtree()


def is_factor(port: Array, wide: Array) -> bool:
    """True if a factor explains most of the error of a gradient."""
    gap = port.astype(wide.dtype) - wide
    lengths = rms(gap) * rms(wide)
    shared = abs(complex(np.mean(gap * np.conj(wide)))) if gap.size >= ENOUGH else 0.0
    return bool(lengths) and (shared / lengths) ** 2 > MOST


def strict(error: Error, ref: Array) -> float:
    """R without the reference's own distance from float64."""
    unit = 4 * unit_roundoff(ref.dtype)
    return error.r * max(1.0, error.floor_rel_l2 / unit) if unit else error.r


def small(error: Error, limit: float) -> bool:
    """True if an error that fails may be that of a few entries."""
    return error.r > limit and error.rel_l2 < KINK and not error.nonfinite


def worst_of(subjects: Iterable[Subject], limit: float) -> tuple[Error, float]:
    """The worst error; and the largest relative error that is more than rounding where nothing
    jumps.
    """
    errors, far = list[Error](), 0.0
    for subject in subjects:
        ref, port, wide, terms = subject.ref, subject.port, subject.wide, subject.terms
        if subject.problem or port is None:
            return Error.unknown(subject.problem or NOT_AGAIN), far
        error = scored(ref, port, wide, terms)
        if strict(error, ref) > limit:
            far = max(far, error.rel_l2)
        size = 0.0 if subject.jump is None else rms(subject.jump)
        errors.append(widened(ref, port, wide, terms, size) if size else error)
    if any(error.unsteady for error in errors):
        return Error.unknown(RANDOM), far
    none = Error(math.nan, math.nan, 0)
    return max(errors, key=lambda e: (e.nonfinite, e.r), default=none), far
