"""One gradient of one call, on both sides, and how far they are from each other."""

from dataclasses import dataclass, replace
from functools import cached_property

from parity.metrics import unit_roundoff
from parity.noise import score
from parity.records import Exclusive, Match
from parity.weights import Array

KINK = 0.01
"""Relative error above which it is not asked whether a gradient jumps where rounding decides: one
entry of a mask makes less of it."""

NOT_AGAIN = "not measured: the port did not make this call again on the reference's inputs"


@dataclass(frozen=True)
class Subject:
    """One gradient of one call.

    `ref`, `port` and `wide` are the reference's, the port's and the reference's in float64, of the
    call's own code; `terms` is the size of what the latter is a sum of, and `jump` how far a few
    roundings move it. `whole` is the port's with
    all that is inside the call, `free` that of the port alone, and `given` the array that it is
    the gradient of. `name` is that of an input or a tensor, or, of what is handed back, of an
    output of the call inside. `problem` says why there is no gradient.
    """

    match: Match
    name: str
    ref: Array
    port: Array | None
    wide: Array | None = None
    terms: float = 0.0
    jump: float = 0.0
    whole: Array | None = None
    free: Array | None = None
    given: Array | None = None
    problem: str = ""

    @cached_property
    def own(self) -> Exclusive:
        """The error of the call's own code."""
        if self.port is None or self.problem:
            nan = float("nan")
            return Exclusive(nan, nan, 0, problem=self.problem or NOT_AGAIN)
        return scored(self.ref, self.port, self.wide, self.terms, self.jump)


def scored(
    ref: Array, port: Array, wide: Array | None, terms: float = 0.0, jump: float = 0.0
) -> Exclusive:
    """As an output is, but that gradients of data that is only moved are summed: never exact.

    A small error may be as large as a `jump`.
    """
    error = score(ref, port, wide, terms)
    if jump and error.rel_l2 < KINK:
        error = score(ref, port, wide, max(terms, jump / (4 * unit_roundoff(ref.dtype))))
    return replace(error, moved=False)


def small(error: Exclusive, limit: float) -> bool:
    """Whether an error that fails may be that of a few entries."""
    return error.r > limit and error.rel_l2 < KINK and not error.nonfinite
