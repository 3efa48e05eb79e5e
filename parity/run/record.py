"""The first stage of a case: each side runs, or is read, once."""

from collections.abc import Sequence

from parity.capture import layout as layout_rules
from parity.core.calls import Trace
from parity.core.globs import Pending
from parity.extras.input_coverage import coverage_of
from parity.options.scope import opened, scope_of
from parity.run.protocols import Context
from parity.run.records import Recording


def record(context: Context) -> Recording:
    """The calls of both sides in the scope of the comparison."""
    case, options, progress = context.case, context.options, context.progress
    layout, reference, port = options.layout or {}, context.reference, context.port
    layout_rules.check(layout)
    scope = scope_of(case, reference.modules().keys(), port.paths(), options)
    given = reference.arguments(case, layout)
    port.prepare(context, given)
    progress.stage("reference")
    ref = reference.record(case, context.store, layout, scope.ref)
    _check_pending(options.pending, ref, early=True)
    given = layout_rules.as_read_inside(given, ref.calls)
    done = coverage_of(ref.calls, reference.optional(case))
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
