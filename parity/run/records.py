"""Records that the stages of a case pass on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parity.align.calls import Alignment
from parity.core.calls import Call, Trace
from parity.core.measurements import Emulation, NonFinite
from parity.core.repro import Repro
from parity.core.verdicts import Fault, Row
from parity.extras.input_coverage import InputCoverage
from parity.force.common import Sides
from parity.judge.faults import Found
from parity.measure.free import Free
from parity.options.scope import Scope
from parity.run.part import Part


@dataclass(frozen=True)
class Recording:
    """One recorded run of each side, in the scope of the comparison.

    `ref_root` and `port_root` are the calls of the called module itself, which the scope may leave
    out; the port's is `None` where nothing in the scope was called.
    """

    scope: Scope
    ref: Trace
    port: Trace
    ref_root: Call
    port_root: Call | None
    exercised: InputCoverage

    @property
    def calls(self) -> tuple[Sequence[Call], Sequence[Call]]:
        """All calls of the reference and of the port."""
        return self.ref.calls, self.port.calls


@dataclass(frozen=True)
class Compared:
    """A recording whose calls are matched, and the free-running errors."""

    recording: Recording
    alignment: Alignment
    free: Free


@dataclass(frozen=True)
class Judged:
    """Judged parts of a case, and the sides whose runs they were judged by."""

    parts: Sequence[Part]
    sides: Sides

    @property
    def found(self) -> Sequence[Found]:
        """The rows of all parts."""
        return [one for part in self.parts for one in part.found]


@dataclass(frozen=True)
class Extras:
    """Results of the optional checks.

    `rows` and `faults` are of gradients. `uncaptured` says by case what the port returned when it
    was not recorded, `seen` what a person would see of what both sides returned.
    """

    rows: tuple[Row, ...] = ()
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    uncaptured: Mapping[str, str] = field(default_factory=dict)
    emulation: Emulation | None = None
    nonfinite: tuple[NonFinite, ...] = ()
    repro: Repro | None = None
    seen: str = ""
