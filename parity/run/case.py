"""One case from capture to faults: record both sides, match calls, measure, judge, explain."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from parity.align.ignored import left_out
from parity.core.pair import Case
from parity.core.repro import Repro
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.core.verdicts import Coverage, Fault, Row
from parity.extras.input_coverage import InputCoverage
from parity.host.progress import Progress
from parity.options.options import Options
from parity.options.scope import with_deeper
from parity.run.explain import faults_of
from parity.run.inputs import root_outputs, weak_inputs
from parity.run.match import agree, match
from parity.run.optional import Extras, extras_of
from parity.run.protocols import Context, Port, Reference
from parity.run.record import record
from parity.run.records import Compared


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


def run_case(
    case: Case,
    reference: Reference,
    port: Port,
    options: Options,
    weights: Sequence[Weight],
    progress: Progress,
) -> Outcome:
    """Run both sides on one input; measure, judge and explain. `weights` is the weight map."""
    with Store() as store, jax.disable_jit() if options.eager else nullcontext():
        context = Context(case, reference, port, options, weights, store, progress)
        recording = record(context)
        compared = match(context, recording)
        if case.returned_from is None or agree(compared):
            judged = port.judge(context, compared)
            faults = faults_of(judged.parts, reference.diagnose, progress)
            extras = extras_of(context, compared, judged, faults)
            rows = (*(one.row for one in judged.found), *extras.rows)
            return _outcome(context, compared, rows, (*faults, *extras.faults), extras)
    # outputs known from cases before may be wrong too, and would count as the reference's rounding
    case = replace(case, returned_from=None)
    return run_case(case, reference, port, options, weights, progress)


def _outcome(
    context: Context,
    compared: Compared,
    rows: tuple[Row, ...],
    faults: tuple[Fault, ...],
    extras: Extras,
) -> Outcome:
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


def with_repro(
    outcome: Outcome,
    weights_of: Callable[[str], Mapping[str, Any]],
    made: Callable[[Repro], Repro],
) -> Outcome:
    """The outcome, its repro with the weights of the module and with how the port is `made`."""
    repro = outcome.extras.repro
    if repro is None:
        return outcome
    if not repro.problem:
        repro = replace(repro, weights=weights_of(repro.fault.path))
    return replace(outcome, extras=replace(outcome.extras, repro=made(repro)))
