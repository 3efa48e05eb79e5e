"""One case from capture to faults: record both sides, match calls, measure, judge, explain."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import jax

from parity.align.ignored import left_out
from parity.core.pair import Case
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.host.progress import Progress
from parity.options.options import Options
from parity.options.scope import with_deeper
from parity.run.compared import agree, compared_calls
from parity.run.explain import faults_of
from parity.run.extras import extras_of
from parity.run.inputs import root_outputs, weak_inputs
from parity.run.moved_code import inlined, moved
from parity.run.proposal import tried
from parity.run.protocols import Context, Port, Reference
from parity.run.records import Compared, Outcome


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
        compared = compared_calls(context)
        if case.returned_from is None or agree(compared):
            return _judged(context, compared)
    # outputs known from cases before may be wrong too, and would count as the reference's rounding
    case = replace(case, returned_from=None)
    return run_case(case, reference, port, options, weights, progress)


def _judged(context: Context, compared: Compared) -> Outcome:
    case, reference, store = context.case, context.reference, context.store
    records = context.port.judge(context, compared)
    if paths := moved(records, reference.keep):
        compared = replace(compared, alignment=inlined(compared.alignment, paths))
        records = context.port.judge(context, compared)
    faults = faults_of(records, reference, context.progress)
    extras = extras_of(context, compared, records, faults)
    notes = (*compared.alignment.notes, *context.port.notes(compared.port), *extras.notes)
    return Outcome(
        (*(one.row for record in records for one in record.found), *extras.rows),
        (*faults, *extras.faults),
        with_deeper(compared.alignment.coverage, compared.scope.deeper),
        root_outputs(compared.ref_root, store),
        compared.exercised,
        (
            *reference.notes(case),
            *weak_inputs(compared.ref_root, store),
            *(f"{case.name}: {note}" for note in notes),
        ),
        left_out(compared.alignment.matches),
        extras,
        tried(context, compared),
    )
