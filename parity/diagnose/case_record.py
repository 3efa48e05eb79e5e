"""The record of a case that a diagnosis works on."""

from collections.abc import Sequence
from dataclasses import dataclass

from parity.core.calls import Call, Match
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.force.common import Sides
from parity.measure.exclusive import Exclusives


@dataclass(frozen=True)
class CaseRecord:
    """One case with everything that was recorded in it; `calls` are those of the reference."""

    matches: Sequence[Match]
    calls: Sequence[Call]
    sides: Sides
    exclusives: Exclusives
    weights: Sequence[Weight]
    store: Store
    port_calls: Sequence[Call] = ()
