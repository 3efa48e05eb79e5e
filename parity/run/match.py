"""The second stage of a case: calls of both sides are matched, and compared as they ran."""

from fnmatch import fnmatchcase

import numpy as np

from parity.align.calls import align
from parity.core.globs import check_used, renamed
from parity.judge.verdict import fail_limit
from parity.measure.exclusive import SLACK
from parity.measure.free import measure_free
from parity.measure.noise import bounded
from parity.options.scope import DEEPER
from parity.run.protocols import Context
from parity.run.records import Compared, Recording


def match(context: Context, recording: Recording) -> Compared:
    """The recording with its calls matched, and the free-running errors."""
    options = context.options
    rename = options.rename or {}
    names = [renamed(path, rename) for path in recording.scope.deeper]
    deeper = {glob: DEEPER for name in names for glob in (name, f"{name}.*")}
    alignment = align(
        recording.ref,
        recording.port,
        rename=rename,
        declared={**(options.declared or {}), **deeper},
        weight_map=context.weights,
        store=context.store,
        inlining=context.port.inlines,
    )
    if not options.only:
        calls = (*recording.ref.calls, *recording.port.calls)
        names = [f"{call.path}#{leaf.name}" for call in calls for leaf in call.outputs]
        check_used("ignore", options.leaves, names, "output", fnmatchcase)
    free = measure_free(alignment.matches, context.store, context.progress)
    return Compared(recording, alignment, free)


def agree(compared: Compared) -> bool:
    """Both sides return the same but for rounding, whatever float64 would say."""
    kinds = {match.ref.order: match.ref.kind for match in compared.alignment.matches}

    def close(order: int, rel_l2: float) -> bool:
        return bounded(rel_l2, SLACK * fail_limit(kinds[order]), np.dtype(np.float32))

    errors = compared.free.errors.items()
    return all(error.mae == 0 or close(order, error.rel_l2) for (order, _), error in errors)
