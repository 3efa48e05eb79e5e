"""Records of measured errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from parity.core.codec import stored_as, string
from parity.core.problems import DIFFERENT, Problem, ProblemKind, not_measured


@dataclass(frozen=True)
class Metrics:
    """Distance of a port's array from the reference's, in float64.

    `nonfinite` counts the entries that are NaN or infinite on one side only, or differently.
    """

    mae: float
    mse: float
    max_abs: float
    rel_mae: float
    rel_l2: float
    rel_linf: float
    p999: float
    ulp_p99: float
    cosine: float
    ref_rms: float
    worst_index: tuple[int, ...]
    nonfinite: int


UNSTEADY = 0.05
"""Relative distance of the reference from its own float64 run above which it is no reference."""

NOT_EXACT = "the reference only moves data, and the port changes it"


def _text(problem: Problem | None) -> str:
    return "" if problem is None else problem.text


def _problem(text: object) -> Problem | None:
    return not_measured(string(text)) if text != "" else None


@dataclass(frozen=True)
class Error:
    """Error of one output of a call that was fed the reference's inputs.

    It is exclusive, that of the module's local computation, if the calls inside it return the
    reference's outputs, and inclusive, that of the subtree, if they run too. `floor_rel_l2` is the
    reference's own relative distance from float64, R the port's in units of it (see `noise`). R is
    measured where it matters for a verdict; `bounded` says that `rel_l2` alone bounds it under a
    few times its limit (see `SLACK`). Of exclusive errors, `moved` says that the reference only
    moves data here, without any rounding, and `part` which channel is wrong that the figures of the
    whole do not show (see `channels`).
    """

    mae: float
    rel_l2: float
    nonfinite: int
    floor_rel_l2: float = float("nan")
    r: float = float("nan")
    problem: Problem | None = field(default=None, metadata=stored_as(_text, _problem))
    bounded: bool = False
    moved: bool = False
    part: str = ""

    @classmethod
    def unknown(cls, why: str) -> "Error":
        """The error of a call that could not be measured."""
        return cls(float("nan"), float("nan"), 0, problem=not_measured(why))

    @property
    def unmeasured(self) -> bool:
        """True if the error, or R where it matters, could not be measured."""
        return self.problem is not None and self.problem.kind is ProblemKind.NOT_MEASURED

    @property
    def steady(self) -> bool:
        """False if the reference differs from its own float64 run by more than any rounding can."""
        return not self.floor_rel_l2 > UNSTEADY

    @property
    def unsteady(self) -> bool:
        """True if the reference is not steady, and the port not equal to it."""
        return not self.steady and self.mae > 0

    def failure(self, limit: float) -> Problem | None:
        """The problem if this is no rounding, `None` if it is: entries that differ in being finite,
        another form, fewer bits, R beyond `limit`, or data that was only moved and has changed.
        """
        if self.nonfinite:
            text = f"{self.nonfinite} entries differ in being finite"
            return Problem(ProblemKind.NONFINITE, text)
        if self.problem is not None and self.problem.kind in (*DIFFERENT, ProblemKind.FEWER_BITS):
            return self.problem
        if self.r > limit:
            return Problem(ProblemKind.ERROR, f"R {self.r:.3g} > {limit:g}")
        return Problem(ProblemKind.ERROR, NOT_EXACT) if self.moved and self.mae > 0 else None

    def fails(self, limit: float) -> bool:
        """True if this is more than rounding."""
        return self.failure(limit) is not None

    def of_subtree(self) -> "Error":
        """The error as that of a subtree: exactness and single channels are not asked of one."""
        return replace(self, moved=False, part="")


@dataclass(frozen=True)
class ChildInput:
    """An input that a container passes to a call inside it and that is not the reference's.

    `parent` and `child` are the `order` of the two calls, `after` is the path of the call inside
    the parent that came before the child, if any.
    """

    parent: int
    child: int
    path: str
    leaf: str
    after: str
    error: Error


@dataclass(frozen=True)
class Loss:
    """Cost of rounded products to one call of the port that is given the reference's inputs.

    `rel_l2` is the relative distance from what the same code makes of them without emulation: of
    output `leaf`, or, where `to` is the path of a call inside, of that argument of it.
    """

    path: str
    kind: str
    call: int
    leaf: str
    to: str
    rel_l2: float


@dataclass(frozen=True)
class Emulation:
    """One case on emulated hardware (see `emulate`).

    `outputs` maps each output leaf to the relative L2 distance that the emulation adds, and to
    that of the port itself from the reference, both free-running. `lossy` of the `calls` that were
    repeated differ from float32 by more than its rounding; `losses` are of those, the worst first.
    """

    mode: str
    case: str
    path: str
    outputs: Mapping[str, tuple[float, float]]
    losses: tuple[Loss, ...]
    lossy: int
    calls: int


@dataclass(frozen=True)
class NonFinite:
    """The first call of one side whose output leaves the finite numbers.

    `nan` and `inf` count the entries of output `leaf`, of `size`. `largest` is the largest finite
    magnitude among its inputs, `given` how many entries of these were not finite already. `alike`
    says that the other side has the same entries.
    """

    side: Literal["reference", "port"]
    case: str
    path: str
    kind: str
    call: int
    leaf: str
    nan: int
    inf: int
    size: int
    largest: float
    given: int
    alike: bool


NOT_IN_FLOAT64 = "not measured: the reference does not run in float64"
