"""One case from capture to faults: record both sides, match calls, measure, judge, explain."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import jax

from parity.core.pair import Case
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.host.progress import Progress
from parity.options.options import Options
from parity.run.explain import faults_of
from parity.run.extras import extras_of
from parity.run.match import agree, match
from parity.run.moved import moved, without
from parity.run.outcome import Outcome, outcome_of
from parity.run.protocols import Context, Port, Reference
from parity.run.record import record


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
            if paths := moved(judged.found):
                compared = replace(compared, alignment=without(compared.alignment, paths))
                judged = port.judge(context, compared)
            faults = faults_of(judged.parts, reference.diagnose, progress)
            extras = extras_of(context, compared, judged, faults)
            rows = (*(one.row for one in judged.found), *extras.rows)
            return outcome_of(context, compared, rows, (*faults, *extras.faults), extras)
    # outputs known from cases before may be wrong too, and would count as the reference's rounding
    case = replace(case, returned_from=None)
    return run_case(case, reference, port, options, weights, progress)
