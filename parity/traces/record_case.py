"""One case of a golden trace: the calls of the reference, and what they do in float64."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.core.calls import Call, Leaf, LeafMatch, Match, Trace
from parity.core.globs import named
from parity.core.pair import Case, Pair
from parity.core.plain import encode
from parity.core.store import Array, Store
from parity.core.tree import flatten
from parity.force.common import Arrays, NotMeasured, Recording
from parity.host.progress import Progress
from parity.options.scope import Scope, opened
from parity.run.inputs import root_outputs
from parity.run.judge import Extent, extents
from parity.run.running_reference import RunningReference
from parity.traces.arrays import ArrayFolder
from parity.traces.index import Float64Call, StoredCase, Wide, buffers_of
from parity.traces.methods import check_words, name_of


def record_case(
    case: Case,
    live: RunningReference,
    pair: Pair,
    scope: Scope,
    arrays: ArrayFolder,
    progress: Progress,
) -> tuple[StoredCase, Mapping[str, Any]]:
    """The case, whose arrays are written, and outputs of the called module.

    Runs the case, then once more in float64, then each call with others inside by itself.
    Of a part of the model the outermost calls of the `scope` run in float64, one after another.

    Raises:
        InputError: a check could not make this case.
    """
    nnx = name_of(case.nnx, pair)
    shipped = None if case.shipped is None else name_of(case.shipped, pair)
    given = flatten(live.arguments(case, pair.layout))
    encode(given.skeleton)  # before minutes of work: it refuses what a file cannot hold
    check_words(given.skeleton, pair)
    progress.stage("reference")
    with Store() as store:
        trace, without = _without_taps(case, live.record(case, store, pair.layout, scope.ref))
        for call in trace.calls:
            for buffer in buffers_of((*call.inputs, *call.outputs)):
                arrays.keep(buffer, store.get)
        added, problem = _in_float64(case, live, scope, trace, store, arrays, progress)
        outputs = root_outputs(trace.calls[-1], store)
    stored = StoredCase(
        **{name: getattr(case, name) for name in ("name", "path", "depth", "floor", "r_limit")},
        nnx=nnx,
        shipped=shipped,
        arguments=given.skeleton,
        given=tuple(arrays.put(np.asarray(array)) for _, array in given.arrays),
        free=case.args_from is None,
        calls=trace.calls,
        float64=tuple(Float64Call(**added[call.order]) for call in trace.calls),
        modules=tuple(replace(info, path=path) for path, info in trace.modules.items()),
        optional={kind: tuple(names) for kind, names in live.optional(case).items()},
        notes=(*live.notes(case), *without),
        problem=problem,
    )
    return stored, outputs


def _without_taps(case: Case, trace: Trace) -> tuple[Trace, tuple[str, ...]]:
    """The trace without taps, and a note of them: float64 values with a tap's code apart would be
    of no use to a port that lacks the tap.
    """
    taps = list(dict.fromkeys(call.path for call in trace.calls if call.tapped))
    if not taps:
        return trace, ()
    kept = [call for call in trace.calls if not call.tapped]
    place = {call.order: index for index, call in enumerate(kept)} | {-1: -1}
    calls = (replace(one, order=place[one.order], parent=place[one.parent]) for one in kept)
    note = f"{case.name}: a golden trace has no taps: {named(taps)} left out"
    return replace(trace, calls=tuple(calls)), (note,)


def _in_float64(
    case: Case,
    live: RunningReference,
    scope: Scope,
    trace: Trace,
    store: Store,
    arrays: ArrayFolder,
    progress: Progress,
) -> tuple[Mapping[int, Mapping[str, Any]], str]:
    """Fields of a `Float64Call` by `order`, and the reason why the reference did not run with its
    calls apart, if it did not.
    """
    shown = trace if scope.whole else opened(trace)
    float64 = live.float64(case if scope.whole else replace(case, torch="__call__"))
    calls = (shown.calls, shown.calls)
    matches = tuple(map(_with_itself, shown.calls))
    parts = (Extent(matches, calls),) if scope.whole else extents(matches, calls)
    added: dict[int, dict[str, Any]] = defaultdict(dict)

    def wide(leaves: Sequence[Leaf], found: Arrays) -> Wide:
        """Additions to the leaves that make them `found`, which are these in float64."""
        gaps = _differences(leaves, found, store)
        return {name: arrays.put(gap) if gap.any() else None for name, gap in gaps}

    def heard(match: Match, given: Arrays, outputs: Arrays) -> None:
        added[match.ref.order]["passed"] = wide(match.ref.inputs, given)
        added[match.ref.order]["own"] = wide(match.ref.outputs, outputs)
        progress.advance()

    progress.stage("the reference in float64", len(matches))
    failed: dict[int, str] = {}
    for part in parts:
        orders = {match.ref.order for match in part.matches}
        recording = Recording(part.matches, part.calls[0], store)
        failed |= float64.own(recording, heard, orders)
    around = {call.parent for call in shown.calls}
    containers = [m.ref for part in parts for m in part.matches if m.ref.order in around]
    progress.stage("the reference in float64, call by call", len(containers))
    for call in containers:
        try:
            added[call.order]["whole"] = wide(call.outputs, float64.whole(call, store))
        except NotMeasured as error:
            added[call.order]["problem"] = str(error)
        progress.advance()
    return added, next(iter(failed.values()), "")


def _with_itself(call: Call) -> Match:
    inputs, outputs = (
        tuple(LeafMatch(leaf, leaf) for leaf in leaves) for leaves in (call.inputs, call.outputs)
    )
    return Match(call, call, inputs, outputs, call.parent)


def _differences(
    leaves: Sequence[Leaf], found: Arrays, store: Store
) -> Iterator[tuple[str, Array]]:
    """By leaf the difference of its float64 array from the recorded one, as a trace stores it."""
    for leaf in leaves:
        wide = found.get(leaf.name)
        if leaf.buffer is None or wide is None or wide.shape != leaf.buffer.shape:
            continue
        kinds = {"c": (np.complex64, np.complex128)}
        kind, exact = kinds.get(leaf.buffer.dtype.kind, (np.float32, np.float64))
        if leaf.buffer.dtype.kind in "fcV":
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite counts nowhere
                gap = wide - store.get(leaf.buffer).astype(exact)
                yield leaf.name, np.asarray(gap).astype(kind)
