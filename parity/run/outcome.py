"""The result of one case."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.align.ignored import left_out
from parity.core.verdicts import Coverage, Fault, Row
from parity.extras.input_coverage import InputCoverage
from parity.options.scope import with_deeper
from parity.run.inputs import root_outputs, weak_inputs
from parity.run.protocols import Context
from parity.run.records import Compared, Extras


@dataclass(frozen=True)
class Outcome:
    """Result of one case; `outputs` are the reference's, channel-first, by leaf.

    `left_out` names what both sides have and a declaration leaves out.
    """

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    coverage: Coverage
    outputs: Mapping[str, Any]
    exercised: InputCoverage
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)


def outcome_of(
    context: Context,
    compared: Compared,
    rows: tuple[Row, ...],
    faults: tuple[Fault, ...],
    extras: Extras,
) -> Outcome:
    """The outcome of a case, of its rows and faults and of what else was checked."""
    case, reference, store = context.case, context.reference, context.store
    recording, alignment = compared.recording, compared.alignment
    port_notes = context.port.notes(recording.port)
    of_case = (*alignment.notes, *port_notes, *extras.notes)
    return Outcome(
        rows,
        faults,
        with_deeper(alignment.coverage, recording.scope.deeper),
        root_outputs(recording.ref_root, store),
        recording.exercised,
        (
            *reference.notes(case),
            *weak_inputs(recording.ref_root, store),
            *(f"{case.name}: {note}" for note in of_case),
        ),
        left_out(alignment.matches),
        extras,
    )
