"""One gradient of one call on both sides, its error, and the rounding that is allowed for.

The reference is run in float64 a few times more, with every result changed by a few roundings. What
this moves is rounding: of sums that cancel, and of masks, maxima and clamps that take the other
side, where a gradient jumps. `docs/thresholds.md` has the numbers of the forward pass.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parity.core.arrays import Array
from parity.core.calls import Match
from parity.core.limits import r_limit
from parity.core.measurements import Error
from parity.core.metrics import rms, unit_roundoff
from parity.core.problems import not_measured
from parity.force.common import STEP, NotMeasured
from parity.measure.exclusive import NO_CALL
from parity.measure.noise import of_sum, score

SAMPLES = 4
"""How often the reference is run with a few roundings more: to either side, twice."""

KINK = 0.01
"""Relative error above which it is not asked whether a gradient jumps where rounding decides: one
entry of a mask makes less of it."""

ENTRY = 10.0
"""Units of R by which one entry is off before it may be a jump."""

AS_FAR = 2.0
"""A jump may be so many times what was seen to jump there."""

RARE = 100.0
"""What is moved so many times as far as most entries are is a jump, and no size of rounding."""


def nothing() -> None:
    """No movement: it is not known."""


@dataclass(frozen=True)
class Subject:
    """One gradient of one call.

    `ref`, `port` and `wide` are the reference's, the port's and the reference's in float64, of the
    call's local code; `moved` gives how far a few roundings move each entry, and `positions` is
    over how many it is a sum. `kind` is the class of the module whose limits hold. `free` are both
    sides' of the whole run, and `given` is the array that it is the gradient of. `name` is that of
    an input, a tensor, or an output of a call inside to which the gradient is passed back.
    `problem` says why there is no gradient.
    """

    match: Match
    name: str
    kind: str
    ref: Array
    port: Array | None
    wide: Array | None = None
    moved: Callable[[], Array | None] = nothing
    positions: int = 1
    free: tuple[Array, Array] | None = None
    given: Array | None = None
    problem: str = ""

    @cached_property
    def own(self) -> Error:
        """The local error of the call."""
        if self.port is None or self.problem:
            return Error.unknown(self.problem or NO_CALL)
        return self.scored(self.port)

    def scored(self, port: Array) -> Error:
        """The error of a gradient in its place. That of data that is only moved is never exact.

        One that is over a limit is measured again in units of what roundings make of it. If it
        fails still, and is small, entries that jump are left out; the reference's own always are.
        """
        wide, limit = self.wide, r_limit(self.kind)
        if wide is None or wide.shape != self.ref.shape:
            return score(self.ref, port).of_subtree()
        ref = _without_jumps(self.ref, wide)
        error = replace(score(ref, port, wide), moved=False)
        try:
            moved = self.moved() if error.r > limit.warn or error.part or not error.steady else None
        except NotMeasured as why:  # it may be rounding, or not
            nan = math.nan
            return replace(error, r=nan, floor_rel_l2=nan, problem=not_measured(str(why)))
        if moved is None:
            return error
        terms = of_sum(_rounding(moved), self.positions)
        gap = np.abs(port.astype(wide.dtype) - wide)
        part = score(ref, np.where(gap <= AS_FAR * moved, wide, port), wide).part
        error = replace(score(ref, port, wide, terms), moved=False, part=part)
        if not error.r > limit.fail or not error.rel_l2 < KINK:
            return error
        unit = 4 * unit_roundoff(ref.dtype) * max(rms(wide), terms)
        jumped = (gap > ENTRY * unit) & (gap <= AS_FAR * moved)
        return replace(error, r=score(ref, np.where(jumped, wide, port), wide, terms).r)


def _without_jumps(ref: Array, wide: Array) -> Array:
    """The reference's gradient, exact where it jumps: its distance from float64 is a measure of
    rounding.
    """
    gap = np.abs(ref.astype(wide.dtype) - wide)
    least = ENTRY * 4 * unit_roundoff(ref.dtype) * rms(wide)
    jumped = gap > max(least, RARE * float(np.median(gap))) if gap.size else False
    return np.where(jumped, wide, ref.astype(wide.dtype)).astype(ref.dtype)


def _rounding(moved: Array) -> float:
    """The size of one rounding, given how far `STEP` moves each entry."""
    usual = RARE * np.median(moved[moved > 0]) if moved.any() else 0.0
    return rms(np.where(moved > usual, 0, moved)) / STEP
