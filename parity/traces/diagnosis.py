"""Causes that recorded arrays and weights show, where nothing of the reference can be changed."""

import math
from collections.abc import Iterator
from itertools import chain

from parity.core.arrays import Array
from parity.core.calls import Match
from parity.core.verdicts import Diagnosis
from parity.diagnose import result_changes
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.causes import EXPLAINED, HINTS
from parity.diagnose.error_map import location
from parity.diagnose.without_replay import by_kind, by_repetition, suspected
from parity.judge.faults import Found
from parity.traces.float64 import RecordedFloat64


def diagnosis(found: Found, scene: CaseRecord, advice: str) -> Diagnosis:
    """Cause of what one call gets wrong; `advice` is the hint where none is shown."""
    match = next(m for m in scene.matches if m.ref.order == found.row.order)
    for cause, evidence in chain(by_kind(found, match), by_repetition(match, scene)):
        return Diagnosis(cause, evidence, HINTS[cause])
    arrays = next(_wrong(found, match, scene), None)
    place = location(*arrays) if arrays else ""
    lines = suspected(match, scene)
    if lines:
        evidence = "; ".join(line.text for line in lines[:3])
        return Diagnosis(lines[0].cause, evidence, HINTS[lines[0].cause], place)
    left, cause, text = result_changes.best(*arrays) if arrays else (math.inf, "", "")
    if left <= EXPLAINED:
        evidence = f"{text} explains {100 * (1 - left):.4g} % of the error"
        return Diagnosis(cause, evidence, HINTS[cause], place)
    container = any(one.parent == match.ref.order for one in scene.matches)
    return Diagnosis("glue" if container else "unknown", "", advice, place)


def _wrong(found: Found, match: Match, scene: CaseRecord) -> Iterator[tuple[Array, Array]]:
    """The reference in float64 and the port, where the call goes wrong: child inputs first."""
    float64 = scene.sides.reference
    assert isinstance(float64, RecordedFloat64)  # `Recorded.float64` made it
    for given in found.child_inputs:
        buffer = scene.exclusives.received.get((given.child, given.leaf))
        ref = float64.child_input(given.child, given.leaf)
        if ref is not None and buffer is not None:
            yield ref, scene.store.get(buffer)
    errors = scene.exclusives.errors
    outputs = scene.exclusives.outputs
    keys = [(match.ref.order, leaf.ref.name) for leaf in match.outputs]
    for key in sorted(filter(outputs.__contains__, keys), key=lambda key: -errors[key].rel_l2):
        ref = float64.returned(*key)
        if ref is not None:
            yield ref, scene.store.get(outputs[key])
