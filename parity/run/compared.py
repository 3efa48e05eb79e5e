"""The first stages of a case: each side runs, or is read, once, and their calls are matched."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from parity.align.calls import Alignment, align
from parity.capture import layout as layout_rules
from parity.core.calls import Call, Match, Trace, above
from parity.core.globs import check_used, renamed
from parity.core.limits import fail_limit
from parity.extras.input_coverage import coverage_of
from parity.measure.exclusive import SLACK
from parity.measure.free import measure_free
from parity.measure.noise import bounded
from parity.options.options import Options
from parity.options.scope import DEEPER, Scope, opened, scope_of
from parity.run.protocols import Context
from parity.run.records import Compared


def compared_calls(context: Context) -> Compared:
    """The calls of both sides in the scope of the comparison, as they ran."""
    case, options, progress = context.case, context.options, context.progress
    layout, reference, port = options.layout or {}, context.reference, context.port
    layout_rules.check(layout)
    scope = scope_of(case, reference.modules().keys(), port.paths(), options)
    given = reference.arguments(case, layout)
    port.prepare(context, given)
    progress.stage("reference")
    ref = reference.record(case, context.store, layout, scope.ref)
    _check_globs(options, ("rename", "layout"), ref)
    given = layout_rules.as_read_inside(given, ref.calls)
    done = coverage_of(ref.calls, reference.optional(case), context.store.get)
    progress.stage("port")
    trace = port.record(context, scope, ref, given)
    _check_globs(options, ("ignore",), ref, trace)
    roots = ref.calls[-1], trace.calls[-1] if trace.calls else None
    if not scope.whole:
        ref, trace = opened(ref), opened(trace)
    alignment = aligned(context, scope, ref, trace)
    free = measure_free(alignment.matches, context.store, progress)
    return Compared(scope, ref, trace, *roots, done, alignment, free)


def _check_globs(options: Options, names: Sequence[str], *traces: Trace) -> None:
    """Refuse globs of these options that match no tap either."""
    taps = [call.path for trace in traces for call in trace.calls if call.tapped]
    for name in options.pending.keys() & {*names}:
        options.pending[name](taps)


def aligned(context: Context, scope: Scope, ref: Trace, port: Trace) -> Alignment:
    """The calls of both sides matched, as the options of the comparison say."""
    options = context.options
    rename = options.rename or {}
    names = [renamed(path, rename) for path in scope.deeper]
    deeper = {glob: DEEPER for name in names for glob in (name, f"{name}.*")}
    alignment = align(
        ref,
        port,
        rename=rename,
        declared={**(options.declared or {}), **deeper},
        weight_map=context.weights,
        store=context.store,
        inlining=context.port.inlines,
    )
    if not options.only:
        names = [f"{one.path}#{x.name}" for one in (*ref.calls, *port.calls) for x in one.outputs]
        check_used("ignore", options.leaves, names, "output", fnmatchcase)
    return replace(alignment, matches=_with_random(alignment.matches, ref.calls))


def _with_random(matches: Sequence[Match], calls: Sequence[Call]) -> tuple[Match, ...]:
    """The matches, those marked that have the code of a random call without a match inside them."""
    parents = {call.order: call.parent for call in calls}
    matched = {match.ref.order for match in matches}
    names = {
        next((outer for outer in above(call.order, parents) if outer in matched), -1): call.random
        for call in calls
        if call.random
    }
    return tuple(replace(m, ref=replace(m.ref, random=names.get(m.ref.order, ""))) for m in matches)


def agree(compared: Compared) -> bool:
    """Both sides return the same but for rounding, whatever float64 would say."""
    kinds = {match.ref.order: match.ref.kind for match in compared.alignment.matches}

    def close(order: int, rel_l2: float) -> bool:
        return bounded(rel_l2, SLACK * fail_limit(kinds[order]), np.dtype(np.float32))

    errors = compared.free.errors.items()
    return all(error.mae == 0 or close(order, error.rel_l2) for (order, _), error in errors)
