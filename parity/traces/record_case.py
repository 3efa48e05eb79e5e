"""One case of a golden trace: the calls of the reference, and what they do in float64."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.core.calls import Call, Leaf, LeafMatch, Match, Trace
from parity.core.globs import named
from parity.core.pair import Case, Pair
from parity.core.store import Buffer, Store
from parity.core.tree import flatten
from parity.force.common import Arrays, NotMeasured
from parity.host.progress import Progress
from parity.options.scope import Scope, opened
from parity.run.inputs import root_outputs
from parity.run.judge import Extent, extents
from parity.run.live import Live
from parity.traces.float64 import difference
from parity.traces.index import CALL, StoredCall, StoredCase, StoredLeaf, Wide
from parity.traces.methods import name_of
from parity.traces.shards import Form, ToWrite


def record_case(
    case: Case, live: Live, pair: Pair, scope: Scope, store: Store, progress: Progress
) -> tuple[StoredCase, Mapping[str, Any], ToWrite]:
    """Case, outputs of the called module, and the arrays that are to be written.

    Runs the case, then once more in float64, then each call with others inside by itself.
    Of a part of the model the outermost calls of the `scope` run in float64, one after another.

    Raises:
        InputError: a check could not make this case.
    """
    nnx = name_of(case.nnx, pair)
    shipped = None if case.shipped is None else name_of(case.shipped, pair)
    given = flatten(live.arguments(case, pair.layout))
    progress.stage("reference")
    recorded = live.record(case, store, pair.layout, scope.ref)
    trace, without = _without_taps(case, recorded)
    forms = _Forms(store)
    added, problem = _in_float64(case, live, scope, trace, forms, progress)
    calls = tuple(
        StoredCall(
            **{name: getattr(call, name) for name in CALL},
            inputs=tuple(map(forms.leaf, call.inputs)),
            outputs=tuple(map(forms.leaf, call.outputs)),
            **added[call.order],
        )
        for call in trace.calls
    )
    stored = StoredCase(
        **{name: getattr(case, name) for name in ("name", "path", "depth", "floor", "r_limit")},
        nnx=nnx,
        shipped=shipped,
        arguments=given.skeleton,
        given=tuple(forms.of(store.put(np.asarray(array))) for _, array in given.arrays),
        calls=calls,
        modules=tuple(replace(info, path=path) for path, info in trace.modules.items()),
        optional={kind: tuple(names) for kind, names in live.optional(case).items()},
        notes=(*live.notes(case), *without),
        problem=problem,
        shards=(),
    )
    return stored, root_outputs(trace.calls[-1], store), forms.arrays


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


class _Forms:
    """Forms of what is in the store, whose arrays are to be written."""

    def __init__(self, store: Store) -> None:
        self.store, self.arrays = store, ToWrite()

    def of(self, buffer: Buffer) -> Form:
        """The form of a stored array, which is to be written."""
        return self.arrays.add(buffer.digest, buffer, partial(self.store.get, buffer))

    def leaf(self, leaf: Leaf) -> StoredLeaf:
        """A leaf, whose array is to be written."""
        form = None if leaf.buffer is None else self.of(leaf.buffer)
        return StoredLeaf(leaf.name, form, leaf.value, leaf.moved, leaf.sure)

    def wide(self, leaves: Sequence[Leaf], arrays: Arrays) -> Wide:
        """Differences between these `arrays`, the leaves in float64, and the leaves."""
        found: dict[str, Form | None] = {}
        for leaf in leaves:
            if leaf.buffer is None or leaf.buffer.dtype.kind not in "fcV":
                continue
            array = arrays.get(leaf.name)
            if array is not None and array.shape == leaf.buffer.shape:
                more = difference(array, self.store.get(leaf.buffer))
                put = self.store.put(more, copy=False) if more.any() else None
                found[leaf.name] = None if put is None else self.of(put)
        return found


def _in_float64(
    case: Case, live: Live, scope: Scope, trace: Trace, forms: _Forms, progress: Progress
) -> tuple[Mapping[int, Mapping[str, Any]], str]:
    """Fields of a `StoredCall` that hold its float64 run, by `order`, and the reason why the
    reference did not run with its calls apart, if it did not.
    """
    shown = trace if scope.whole else opened(trace)
    float64 = live.float64(case if scope.whole else replace(case, torch="__call__"))
    calls = (shown.calls, shown.calls)
    matches = tuple(map(_with_itself, shown.calls))
    parts = (Extent(matches, calls),) if scope.whole else extents(matches, calls)
    added: dict[int, dict[str, Any]] = defaultdict(dict)

    def heard(match: Match, given: Arrays, outputs: Arrays) -> None:
        added[match.ref.order]["passed"] = forms.wide(match.ref.inputs, given)
        added[match.ref.order]["own"] = forms.wide(match.ref.outputs, outputs)
        progress.advance()

    progress.stage("the reference in float64", len(matches))
    failed: dict[int, str] = {}
    for part in parts:
        orders = {match.ref.order for match in part.matches}
        failed |= float64.own(part.matches, part.calls[0], forms.store, heard, orders)
    around = {call.parent for call in shown.calls}
    containers = [m.ref for part in parts for m in part.matches if m.ref.order in around]
    progress.stage("the reference in float64, call by call", len(containers))
    for call in containers:
        try:
            whole = float64.whole(call, forms.store)
            added[call.order]["whole"] = forms.wide(call.outputs, whole)
        except NotMeasured as error:
            added[call.order]["problem"] = str(error)
        progress.advance()
    return added, next(iter(failed.values()), "")


def _with_itself(call: Call) -> Match:
    inputs, outputs = (
        tuple(LeafMatch(leaf, leaf) for leaf in leaves) for leaves in (call.inputs, call.outputs)
    )
    return Match(call, call, inputs, outputs, call.parent)
