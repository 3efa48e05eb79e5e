"""One case of a golden trace: the calls of the reference, and what they do in float64."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from parity.case import root_outputs
from parity.float64_torch import TorchModules
from parity.forced import Arrays, NotMeasured
from parity.golden.chosen import chosen
from parity.golden.float64 import difference
from parity.golden.index import StoredCall, StoredCase, StoredLeaf, Wide
from parity.golden.methods import name_of
from parity.golden.plain import encode_skeleton
from parity.golden.shards import Array, Form
from parity.live import Live
from parity.progress import Progress
from parity.records import Case, Leaf, LeafMatch, Match, Pair, Trace
from parity.store import Buffer, Store
from parity.tap_pairs import named
from parity.tree import flatten


@dataclass(frozen=True)
class Made:
    """A recorded case; `outputs` are those of the called module, `arrays` are to be written."""

    stored: StoredCase
    outputs: Mapping[str, Any]
    arrays: Sequence[tuple[Form, Callable[[], Array]]]


def record_case(
    case: Case, live: Live, pair: Pair, only: str | None, store: Store, progress: Progress
) -> Made:
    """Run the case, then once more in float64, then each call with others inside by itself.

    Raises:
        InputError: a check could not make this case.
    """
    nnx = name_of(case.nnx, pair)
    shipped = None if case.shipped is None else name_of(case.shipped, pair)
    given = flatten(live.arguments(case, pair.layout))
    encode_skeleton(given.skeleton)  # refused before anything runs
    progress.stage("reference")
    whole = live.record(case, store, pair.layout, () if case.depth == 0 else None)
    paths = {path for path in whole.modules if only is None or fnmatchcase(path, only)}
    trace = chosen(whole, paths)
    forms = _Forms(store)
    wide = _in_float64(whole, paths, live.float64(case), forms, store, progress)
    calls = tuple(
        StoredCall(
            path=call.path,
            kind=call.kind,
            method=call.method,
            number=call.number,
            parent=call.parent,
            inputs=tuple(map(forms.leaf, call.inputs)),
            outputs=tuple(map(forms.leaf, call.outputs)),
            own=wide.own.get(old, {}),
            handed=wide.handed.get(old, {}),
            whole=wide.whole.get(old, {}),
            problem=wide.problems.get(old, ""),
        )
        for call, old in zip(trace.calls, wide.orders, strict=True)
    )
    stored = StoredCase(
        name=case.name,
        path=case.path,
        nnx=nnx,
        shipped=shipped,
        depth=case.depth,
        floor=case.floor,
        r_limit=case.r_limit,
        arguments=given.skeleton,
        given=tuple(forms.of(store.put(np.asarray(array))) for _, array in given.arrays),
        calls=calls,
        modules=tuple(replace(info, path=path) for path, info in trace.modules.items()),
        optional={kind: tuple(names) for kind, names in live.optional(case).items()},
        notes=(*live.notes(case), *_without_taps(case, whole)),
        problem=wide.problem,
        shards=(),
    )
    return Made(stored, root_outputs(whole.calls[-1], store), list(forms.arrays.values()))


def _without_taps(case: Case, trace: Trace) -> tuple[str, ...]:
    """What a check cannot compare: with a tap's code apart, what it has in float64 would be of no
    use to a port that lacks the tap.
    """
    taps = list(dict.fromkeys(call.path for call in trace.calls if call.tapped))
    if not taps:
        return ()
    return (f"{case.name}: a golden trace has no taps: {named(taps)} left out",)


class _Forms:
    """The arrays that are to be written, by digest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.arrays: dict[str, tuple[Form, Callable[[], Array]]] = {}

    def of(self, buffer: Buffer) -> Form:
        """The form of a stored array, which is to be written."""
        form = Form(buffer.digest.hex(), buffer.shape, buffer.dtype)
        self.arrays.setdefault(form.digest, (form, partial(self._store.get, buffer)))
        return form

    def leaf(self, leaf: Leaf) -> StoredLeaf:
        """A leaf, whose array is to be written."""
        form = None if leaf.buffer is None else self.of(leaf.buffer)
        return StoredLeaf(leaf.name, form, leaf.value, leaf.moved, leaf.sure)

    def wide(self, leaves: Sequence[Leaf], arrays: Arrays) -> Wide:
        """What to add to the leaves to get these, which are theirs in float64."""
        found: dict[str, Form | None] = {}
        for leaf in leaves:
            if leaf.buffer is None or leaf.buffer.dtype.kind not in "fcV":
                continue
            array = arrays.get(leaf.name)
            if array is not None and array.shape == leaf.buffer.shape:
                more = difference(array, self._store.get(leaf.buffer))
                put = self._store.put(more, copy=False) if more.any() else None
                found[leaf.name] = None if put is None else self.of(put)
        return found


@dataclass(frozen=True)
class _InFloat64:
    """By the `order` of calls, what they do in float64, and why `whole` is not known.

    `orders` are those of the calls that are recorded. `problem` says why the reference did not run
    with its calls apart.
    """

    orders: Sequence[int]
    own: Mapping[int, Wide]
    handed: Mapping[int, Wide]
    whole: Mapping[int, Wide]
    problems: Mapping[int, str]
    problem: str


def _in_float64(
    trace: Trace,
    paths: Collection[str],
    float64: TorchModules,
    forms: _Forms,
    store: Store,
    progress: Progress,
) -> _InFloat64:
    matches = _with_themselves(trace, paths)
    own: dict[int, Wide] = {}
    handed: dict[int, Wide] = {}
    whole: dict[int, Wide] = {}
    problems: dict[int, str] = {}

    def heard(match: Match, given: Arrays, outputs: Arrays) -> None:
        handed[match.ref.order] = forms.wide(match.ref.inputs, given)
        own[match.ref.order] = forms.wide(match.ref.outputs, outputs)
        progress.advance()

    orders = [match.ref.order for match in matches]
    progress.stage("the reference in float64", len(matches))
    failed = float64.own(matches, trace.calls, store, heard, set(orders))
    around = {match.parent for match in matches}
    containers = [match.ref for match in matches if match.ref.order in around]
    progress.stage("the reference in float64, call by call", len(containers))
    for call in containers:
        try:
            whole[call.order] = forms.wide(call.outputs, float64.whole(call, store))
        except NotMeasured as error:
            problems[call.order] = str(error)
        progress.advance()
    return _InFloat64(orders, own, handed, whole, problems, next(iter(failed.values()), ""))


def _with_themselves(trace: Trace, paths: Collection[str]) -> tuple[Match, ...]:
    """The recorded calls, each matched with itself."""
    kept = {call.order for call in trace.calls if call.parent == -1 or call.path in paths}

    def around(parent: int) -> int:
        while parent != -1 and parent not in kept:
            parent = trace.calls[parent].parent
        return parent

    return tuple(
        Match(
            call,
            call,
            tuple(LeafMatch(leaf, leaf) for leaf in call.inputs),
            tuple(LeafMatch(leaf, leaf) for leaf in call.outputs),
            around(call.parent),
        )
        for call in trace.calls
        if call.order in kept
    )
