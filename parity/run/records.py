"""Records that the stages of a comparison pass on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.align.calls import Alignment
from parity.core.calls import Call, Match, Trace
from parity.core.measurements import Emulation, NonFinite
from parity.core.repro import Repro
from parity.core.tensors import Tensor, Weight
from parity.core.verdicts import Coverage, Fault, Row
from parity.extras.input_coverage import InputCoverage
from parity.measure.free import Free
from parity.options.scope import Scope
from parity.weights.module_map import Folding


@dataclass(frozen=True)
class Pairing:
    """Modules that correspond, and tensors that hold the same values.

    `modules` counts the reference's, `tensors` are the reference's, and `stated` is what the port's
    modules state otherwise, by those of the reference.
    """

    modules: int
    folding: Folding
    weight_map: tuple[Weight, ...]
    tensors: Sequence[Tensor] = ()
    stated: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """One recorded run of each side, in the scope of the comparison, with its calls matched.

    `ref_root` and `port_root` are the calls of the called module itself, which the scope may leave
    out; the port's is `None` where nothing in the scope was called. `free` are the free-running
    errors.
    """

    scope: Scope
    ref: Trace
    port: Trace
    ref_root: Call
    port_root: Call | None
    exercised: InputCoverage
    alignment: Alignment
    free: Free

    @property
    def calls(self) -> tuple[Sequence[Call], Sequence[Call]]:
        """All calls of the reference and of the port."""
        return self.ref.calls, self.port.calls

    @property
    def root(self) -> Match | None:
        """The match of the called module itself, if it is in the scope and has a counterpart."""
        return next((m for m in self.alignment.matches if m.ref.parent == -1), None)


@dataclass(frozen=True)
class Extras:
    """Results of the optional checks.

    `rows` and `faults` are of gradients and of the compiled run. `uncaptured` says by case what the
    port returned when it was not recorded, `seen` what a person would see of what both sides
    returned.
    """

    rows: tuple[Row, ...] = ()
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    uncaptured: Mapping[str, str] = field(default_factory=dict)
    emulation: Emulation | None = None
    nonfinite: tuple[NonFinite, ...] = ()
    repro: Repro | None = None
    seen: str = ""


@dataclass(frozen=True)
class Outcome:
    """Result of one case; `outputs` are the reference's, channel-first, by leaf.

    `left_out` names what both sides have and a declaration leaves out. `tried` are globs that leave
    out all that has no counterpart.
    """

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    coverage: Coverage
    outputs: Mapping[str, Any]
    exercised: InputCoverage
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)
    tried: tuple[str, ...] = ()
