"""Checks of a case that are made only where they are asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parity.core.measurements import Emulation, NonFinite
from parity.core.verdicts import Fault, Row
from parity.diagnose.case_record import CaseRecord
from parity.force.common import Recording
from parity.run.inputs import root_outputs
from parity.run.protocols import Context
from parity.run.records import Compared, Extras

if TYPE_CHECKING:
    from parity.extras.compiled_run import CompiledRun

NO_ROOT = "gradients were not measured: the root itself has no counterpart in the port"


def extras_of(
    context: Context, compared: Compared, records: Sequence[CaseRecord], faults: Sequence[Fault]
) -> Extras:
    """Make the checks that the case and the options ask for."""
    rows, wrong, notes = _gradients(context, compared, records, faults)
    shipped = _compiled(context, compared, records)
    uncaptured = {context.case.name: shipped.fact} if shipped else {}
    if shipped and shipped.failure:
        order = compared.alignment.matches[-1].ref.order
        root = (x.row for record in records for x in record.found if x.row.order == order)
        row, fault = shipped.failed(next(root), compared.alignment.matches)
        rows, wrong = (*rows, row), (*wrong, fault)
    warning = (shipped.note,) if shipped and shipped.note else ()
    emulation = _emulation(context, compared, records)
    nonfinite, seen = _nonfinite(context, compared), _seen(context, compared)
    making, repro, notes = context.options.making, None, (*notes, *warning)
    if making is not None and faults:
        from parity.run.repro import take

        repro = take(faults[0], records, context, making)
    return Extras(rows, wrong, notes, uncaptured, emulation, nonfinite, repro, seen)


def _gradients(
    context: Context, compared: Compared, records: Sequence[CaseRecord], faults: Sequence[Fault]
) -> tuple[tuple[Row, ...], tuple[Fault, ...], tuple[str, ...]]:
    if not context.options.gradients:
        return (), (), ()
    from parity.capture.nnx import named_tensors
    from parity.capture.recorder import join
    from parity.gradients.measure import measure_gradients
    from parity.gradients.rows import judge_gradients
    from parity.gradients.training import training_notes

    calls = compared.calls
    if compared.root is None:
        return (), (), (NO_ROOT,)
    reference: Any = context.reference  # it runs: of no other are gradients asked for
    backward = reference.backward(context.case)
    matches, sides = compared.alignment.matches, records[-1].sides
    subjects = measure_gradients(
        matches, calls, sides, backward, context.weights, context.store, context.progress
    )
    rows, wrong = judge_gradients(context.case, subjects, {fault.path for fault in faults})
    path = compared.root.port.path
    port = {join(path, one.full_name): one for one in named_tensors(sides.nnx_modules[path])}
    notes = training_notes(context.weights, context.reference.tensors(), port)
    return tuple(rows), tuple(wrong), notes


def _compiled(
    context: Context, compared: Compared, records: Sequence[CaseRecord]
) -> "CompiledRun | None":
    case, root = context.case, compared.root
    if root is None or case.shipped is None or not compared.scope.whole:
        return None
    from parity.extras.compiled_run import compare_compiled

    context.progress.stage("the port as it is shipped")
    passed = all(one.row.verdict == "PASS" for record in records for one in record.found)
    errors = compared.free.errors if passed else {}
    rounding = {key: error.rel_l2 for key, error in errors.items()}
    return compare_compiled(
        root, compared.port.calls, case.shipped, records[-1].sides, rounding, context.store
    )


def _emulation(
    context: Context, compared: Compared, records: Sequence[CaseRecord]
) -> Emulation | None:
    mode, name = context.options.emulate, context.case.name
    if compared.root is None or mode is None:
        return None
    from parity.extras.emulated_error import measure_emulated

    record, free = records[-1], compared.free
    calls = Recording(compared.alignment.matches, compared.port.calls, context.store)
    return measure_emulated(
        mode, name, calls, record.sides, free, record.exclusives, context.progress
    )


def _nonfinite(context: Context, compared: Compared) -> tuple[NonFinite, ...]:
    calls = compared.calls
    if not all(calls):
        return ()
    from parity.extras.nonfinite import first_nonfinite

    matches = compared.alignment.matches
    return first_nonfinite(context.case.name, matches, calls, compared.free, context.store)


def _seen(context: Context, compared: Compared) -> str:
    case, port_root = context.case, compared.port_root
    if case.seen is None or compared.root is None or port_root is None:
        return ""
    outputs = (root_outputs(one, context.store) for one in (compared.ref_root, port_root))
    return case.seen(case.args, *outputs)
