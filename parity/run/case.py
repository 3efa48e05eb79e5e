"""One case from capture to faults: record both sides, match calls, measure, judge, explain."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np

from parity.align.calls import Alignment, align
from parity.align.ignored import left_out
from parity.capture import layout as layout_rules
from parity.core.calls import Trace
from parity.core.globs import Pending, check_used, renamed
from parity.core.pair import Case
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.core.verdicts import Coverage, Fault, Row
from parity.extras.input_coverage import Exercised, exercised
from parity.host.progress import Progress
from parity.judge.verdict import fail_limit
from parity.measure.exclusive import SLACK
from parity.measure.free import measure_free
from parity.measure.noise import bounded
from parity.options.options import Options
from parity.options.scope import DEEPER, opened, scope_of, with_deeper
from parity.run.explain import faults_of
from parity.run.inputs import root_outputs, weak_inputs
from parity.run.optional import Extras, extras_of
from parity.run.protocols import Compared, Context, Port, Recording, Reference


@dataclass(frozen=True)
class Outcome:
    """Result of one case; `outputs` are the reference's, channel-first, by leaf.

    `left_out` names what both sides have and a declaration leaves out.
    """

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    coverage: Coverage
    outputs: Mapping[str, Any]
    exercised: Exercised
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
        recording = _record(context)
        compared = _compare(context, recording)
        if case.returned_from is None or _agree(compared):
            judged = port.judge(context, compared)
            faults = faults_of(judged.parts, reference.diagnose, progress)
            extras = extras_of(context, compared, judged, faults)
            rows = (*(one.row for one in judged.found), *extras.rows)
            return _outcome(context, compared, rows, (*faults, *extras.faults), extras)
    # outputs known from cases before may be wrong too, and would count as the reference's rounding
    case = replace(case, returned_from=None)
    return run_case(case, reference, port, options, weights, progress)


def _record(context: Context) -> Recording:
    """Run or read each side once."""
    case, options, progress = context.case, context.options, context.progress
    layout, reference, port = options.layout or {}, context.reference, context.port
    layout_rules.check(layout)
    scope = scope_of(
        case, reference.modules().keys(), port.paths(),
        only=options.only, depth=options.depth, rename=options.rename or {},
    )  # fmt: skip
    given = reference.arguments(case, layout)
    progress.stage("reference")
    ref = reference.record(case, context.store, layout, scope.ref)
    _check_pending(options.pending, ref, early=True)
    done = exercised(ref.calls, reference.optional(case))
    trace = Trace((), {})
    if scope.whole or len(ref.calls) > 1:
        progress.stage("port")
        trace = port.record(context, scope, ref, given)
    _check_pending(options.pending, ref, trace, early=False)
    roots = ref.calls[-1], trace.calls[-1] if trace.calls else None
    if not scope.whole:
        ref, trace = opened(ref), opened(trace)
    return Recording(scope, ref, trace, *roots, done)


def _check_pending(pending: Sequence[Pending], *traces: Trace, early: bool) -> None:
    """Refuse globs that match no tap: those for the reference alone before the port runs."""
    found = [call.path for trace in traces for call in trace.calls if call.tapped]
    for one in pending:
        if early == (one.option != "ignore"):
            one.check(found)


def _compare(context: Context, recording: Recording) -> Compared:
    """Match the calls of both sides, and measure the free-running errors."""
    options = context.options
    rename = options.rename or {}
    names = [renamed(path, rename) for path in recording.scope.deeper]
    deeper = {glob: DEEPER for name in names for glob in (name, f"{name}.*")}
    alignment = align(
        recording.ref,
        recording.port,
        rename=rename,
        declared={**(options.declared or {}), **deeper},
        rules=options.fused,
        tied=options.tied,
        inlining=context.port.inlines,
    )
    if not options.only:
        check_used("ignore", options.leaves, _output_names(alignment), "output", fnmatchcase)
    free = measure_free(alignment.matches, context.store, context.progress)
    return Compared(recording, alignment, free)


def _output_names(alignment: Alignment) -> list[str]:
    return [f"{m.ref.path}#{leaf.ref.name}" for m in alignment.matches for leaf in m.outputs]


def _agree(compared: Compared) -> bool:
    """Both sides return the same but for rounding, whatever float64 would say."""
    kinds = {match.ref.order: match.ref.kind for match in compared.alignment.matches}

    def close(order: int, rel_l2: float) -> bool:
        return bounded(rel_l2, SLACK * fail_limit(kinds[order]), np.dtype(np.float32))

    errors = compared.free.errors.items()
    return all(error.mae == 0 or close(order, error.rel_l2) for (order, _), error in errors)


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
