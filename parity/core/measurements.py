"""Records of measured errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


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


@dataclass(frozen=True)
class Inclusive:
    """Error of a subtree fed with the reference's inputs.

    R is measured where it matters for a verdict; `bounded` says that `rel_l2` alone bounds it
    under a few times its limit (see `attribute.SLACK`).
    """

    mae: float
    rel_l2: float
    nonfinite: int
    floor_rel_l2: float = float("nan")
    r: float = float("nan")
    problem: str = ""
    bounded: bool = False


UNSTEADY = 0.05
"""Relative distance of the reference from its own float64 run above which it is no reference."""


@dataclass(frozen=True)
class Exclusive:
    """Error of a module's own code: fed with the reference's inputs, and the calls inside it
    return the reference's outputs.

    `floor_rel_l2` is the reference's own relative distance from float64, R the port's in units of
    it (see `noise`). `moved` says that the reference only moves data here, without any rounding,
    and `part` which channel is wrong that the figures of the whole do not show (see `parts`).
    """

    mae: float
    rel_l2: float
    nonfinite: int
    floor_rel_l2: float = float("nan")
    r: float = float("nan")
    problem: str = ""
    bounded: bool = False
    moved: bool = False
    part: str = ""

    @property
    def unsteady(self) -> bool:
        """Whether the reference differs from its own float64 run by more than any rounding can."""
        return self.floor_rel_l2 > UNSTEADY and self.mae > 0

    def fails(self, limit: float) -> bool:
        """Whether this is more than rounding: R beyond `limit`, or data moved and changed."""
        return (
            self.r > limit
            or self.nonfinite > 0
            or self.problem.startswith("shape")
            or (self.moved and self.mae > 0)
        )


@dataclass(frozen=True)
class ChildInput:
    """An input that a container hands to a call inside it otherwise than the reference does.

    `parent` and `child` are the `order` of the two calls, `after` is the path of the call inside
    the parent that came before the child, if any.
    """

    parent: int
    child: int
    path: str
    leaf: str
    after: str
    error: Exclusive


@dataclass(frozen=True)
class Loss:
    """What rounded products cost one call of the port that is given the reference's inputs.

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
    repeated differ from float32 by more than its rounding; `losses` are theirs, the worst first.
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
