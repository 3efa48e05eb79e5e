"""Records of a judged comparison: rows, faults, coverage."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity.core.codec import stored_as
from parity.core.error_map import ErrorMap
from parity.core.exceptions import escaped, shown
from parity.core.globs import path_name
from parity.core.lines import Lines
from parity.core.measurements import Error, Metrics
from parity.core.problems import Side


def _side(flag: object) -> Side:
    """A side of which a file has no more than that there is one: the reason tells which."""
    if not isinstance(flag, bool):
        raise ValueError(f"expected true or false, found {shown(flag)}")
    return "port" if flag else ""


Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]

CONTAINER = "holds modules and never runs"

EMPTY = "holds no tensors of its own and never runs"

IDLE = "called on neither side (through its forward or __call__) with these inputs"

LINE = 91
"""Characters of a fault in a line of 99 about it."""


@dataclass(frozen=True)
class Coverage:
    """Modules, calls and tensors that were compared. `declared` maps what need not match to the
    reason, and `idle` are the modules among these that neither side calls.

    Tensors are counted from the weight map. `proposal` is the argument that leaves out what has no
    counterpart, tried, `""` if all has or if it does not help. `remarks` are sentences on outputs
    that one side alone returns inside of the model; they take nothing from the verdict.
    """

    modules: int
    matched: tuple[str, ...]
    declared: Mapping[str, str]
    unmatched: tuple[str, ...]
    inlined: Mapping[str, str]
    calls: int
    matched_calls: int
    parameters: int = 0
    matched_parameters: int = 0
    buffers: int = 0
    matched_buffers: int = 0
    unmatched_calls: tuple[str, ...] = ()
    unmatched_tensors: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    proposal: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if something was compared, and nothing is missing that was not declared."""
        return bool(self.matched) and not (
            self.unmatched or self.unmatched_calls or self.unmatched_tensors
        )


GRADIENTS = "/grad"
"""The end of the case of a row or fault of gradients."""


COMPILED = "/compiled"
"""The end of the case of a row or fault of the port as it is shipped, where that differs."""


def of_gradient(case: str, leaf: str) -> bool:
    """True for a row or fault of gradients; the case itself may have an input named `grad`."""
    return case.endswith(GRADIENTS) and leaf.startswith("grad(")


@dataclass(frozen=True)
class Row:
    """One line of the table: an output leaf of a matched call, or a gradient of it."""

    rung: str
    case: str
    path: str
    nnx_path: str
    kind: str
    call: int
    leaf: str
    shape: tuple[int, ...]
    dtype: str
    metrics: Metrics | None
    inclusive: Error | None
    exclusive: Error | None
    gain: float
    grade: str
    verdict: Verdict
    reason: str
    order: int
    parent: int
    limited: bool = True
    """True if limits on MAE apply: they do not to inputs of a large mean, nor to gradients, whose
    size says nothing."""
    one_sided: Side = field(default="", metadata=stored_as(bool, _side))
    """The side that alone returns this leaf, `""` if both do."""
    child_inputs: float = 0.0
    """The largest relative error among the child inputs of the call that are out of its limit, or,
    if none is, in doubt."""
    child_r: float = 0.0
    """The largest R of these child inputs."""

    @property
    def own(self) -> float:
        """Relative L2 local error of the call, in its outputs or child inputs; NaN if that was not
        measured.
        """
        return _larger(self.exclusive.rel_l2 if self.exclusive else math.nan, self.child_inputs)

    @property
    def r(self) -> float:
        """R of the call, of its outputs or child inputs; NaN if that was not measured."""
        return _larger(self.exclusive.r if self.exclusive else math.nan, self.child_r)


def _larger(returned: float, passed: float) -> float:
    """The larger figure: of what a call returns, which may be NaN, or of its child inputs."""
    return max(returned, passed) if passed and not math.isnan(returned) else passed or returned


@dataclass(frozen=True, repr=False)
class Fault:
    """A call whose local computation is wrong, whatever happens around and inside it.

    `segment` says between which two calls inside it, `""` if it makes none. `magnitude` is how far
    off it is and by which measure that fails, `""` for what `evidence` measures itself. `cause` is
    a word of the closed vocabulary (see `diagnose`), `evidence` what shows it, `hint` what to do.
    `error_map` is `None` where the arrays have different shapes, and for all but the first faults
    of a report.
    """

    path: str
    call: int
    leaf: str
    case: str
    kind: str
    evidence: str = ""
    segment: str = ""
    cause: str = ""
    hint: str = ""
    magnitude: str = ""
    calls: int = 1
    """How many calls of this module fail so."""
    error_map: ErrorMap | None = None
    lines: Lines | None = None
    """Where in the source of both sides the programs part, `None` where that is not known."""
    parting: int = 0
    """Which of several mistakes in the code of one call this is."""

    @property
    def name(self) -> str:
        """The path of the module in a text."""
        return path_name(self.path)

    @property
    def where(self) -> str:
        """The module and the call."""
        return f"{self.name} ({self.kind}), call {self.call} of {self.case}"

    def __repr__(self) -> str:
        text = escaped(f"{self.where}: {self.cause or self.magnitude}")
        return f"<Fault {text if len(text) <= LINE else f'{text[: LINE - 3]}...'}>"


@dataclass(frozen=True)
class Diagnosis:
    """Cause of a fault: a word of the closed vocabulary, the evidence measured, and what to do.

    `magnitude` is where in the array the error is; where one call has several mistakes, how far off
    it is, too.
    """

    cause: str
    evidence: str
    hint: str
    magnitude: str = ""
