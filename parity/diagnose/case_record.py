"""The record of a case that is judged, and that a diagnosis works on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from parity.core.calls import Call, Match
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.core.time_limit import TimeLimit
from parity.force.common import Sides
from parity.judge.faults import Found
from parity.measure.exclusive import Exclusives


@dataclass(frozen=True)
class CaseRecord:
    """One call and those inside it, which come first, with everything that was recorded of them.

    `calls` are all of the reference there, `port_calls` those of the port, `found` the judged rows.
    """

    matches: Sequence[Match]
    calls: Sequence[Call]
    sides: Sides
    exclusives: Exclusives
    weights: Sequence[Weight]
    store: Store
    found: Sequence[Found]
    port_calls: Sequence[Call] = ()
    limit: TimeLimit = field(default_factory=TimeLimit)
    """Seconds in which causes are looked for."""


def record_of(path: str, call: int, records: Sequence[CaseRecord]) -> CaseRecord:
    """The record that this call is in."""
    place = path, call
    return next(one for one in records if any((x.row.path, x.row.call) == place for x in one.found))
