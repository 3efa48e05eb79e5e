"""Checks of a case that are made only where they are asked for."""

from collections.abc import Mapping, Sequence

from parity.core.calls import Match
from parity.core.measurements import Emulation, NonFinite
from parity.core.repro import Repro
from parity.core.verdicts import Fault, Row
from parity.force.common import Recording
from parity.run.inputs import root_outputs
from parity.run.protocols import Context
from parity.run.records import Compared, Extras, Judged

NO_ROOT = "gradients were not measured: the root itself has no counterpart in the port"


def extras_of(
    context: Context, compared: Compared, judged: Judged, faults: Sequence[Fault]
) -> Extras:
    """Make the checks that the case and the options ask for."""
    root = next((m for m in compared.alignment.matches if m.ref.parent == -1), None)
    rows, wrong, notes = _gradients(context, compared, judged, faults)
    uncaptured, warning = _compiled(context, compared, judged, root)
    return Extras(
        rows,
        wrong,
        (*notes, *warning),
        uncaptured,
        _emulation(context, compared, judged, root),
        _nonfinite(context, compared),
        _repro(context, judged, faults),
        _seen(context, compared, root),
    )


def _gradients(
    context: Context, compared: Compared, judged: Judged, faults: Sequence[Fault]
) -> tuple[tuple[Row, ...], tuple[Fault, ...], tuple[str, ...]]:
    if not context.options.gradients:
        return (), (), ()
    from parity.align.taps import of_modules
    from parity.gradients.measure import measure_gradients
    from parity.gradients.rows import judge_gradients

    calls = compared.recording.calls
    smooth = of_modules(compared.alignment.matches, calls[0])
    if not smooth or smooth[-1].ref.parent != -1:
        return (), (), (NO_ROOT,)
    backward = context.reference.backward(context.case)
    subjects = measure_gradients(
        smooth, calls, judged.sides, backward, context.weights, context.store, context.progress
    )
    rows, wrong = judge_gradients(context.case, subjects, {fault.path for fault in faults})
    return tuple(rows), tuple(wrong), ()


def _compiled(
    context: Context, compared: Compared, judged: Judged, root: Match | None
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    case = context.case
    if root is None or case.shipped is None or not compared.recording.scope.whole:
        return {}, ()
    from parity.extras.compiled_run import compare_compiled

    context.progress.stage("the port as it is shipped")
    passed = all(one.row.verdict == "PASS" for one in judged.found)
    errors = compared.free.errors if passed else {}
    rounding = {key: error.rel_l2 for key, error in errors.items()}
    run = compare_compiled(
        root, compared.recording.port.calls, case.shipped, judged.sides, rounding, context.store
    )
    return {case.name: run.fact}, (run.note,) if run.note else ()


def _emulation(
    context: Context, compared: Compared, judged: Judged, root: Match | None
) -> Emulation | None:
    mode = context.options.emulate
    if root is None or mode is None:
        return None
    from parity.extras.emulated_error import measure_emulated

    matches, calls = compared.alignment.matches, compared.recording.port.calls
    return measure_emulated(
        mode,
        context.case.name,
        Recording(matches, calls, context.store),
        judged.sides,
        compared.free,
        judged.parts[-1].exclusives,
        context.progress,
    )


def _nonfinite(context: Context, compared: Compared) -> tuple[NonFinite, ...]:
    calls = compared.recording.calls
    if not all(calls):
        return ()
    from parity.extras.nonfinite import first_nonfinite

    matches = compared.alignment.matches
    return first_nonfinite(context.case.name, matches, calls, compared.free, context.store)


def _repro(context: Context, judged: Judged, faults: Sequence[Fault]) -> Repro | None:
    if not context.options.keep_repro or not faults:
        return None
    from parity.run.repro import take

    return take(faults[0], judged, context)


def _seen(context: Context, compared: Compared, root: Match | None) -> str:
    case, recording = context.case, compared.recording
    if case.seen is None or root is None or recording.port_root is None:
        return ""
    outputs = (
        root_outputs(one, context.store) for one in (recording.ref_root, recording.port_root)
    )
    return case.seen(case.args, *outputs)
