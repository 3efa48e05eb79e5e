"""Two runs compared as they are: nothing is run again, and no call is given another's arrays.

A call is judged by what it was given in both. Where that is the same to the bit, what it returns
is its own error, exactly; where it is the same up to rounding, R counts in units of what it was
given as well, as far as that is more than rounding; where it is not, nothing is known of the call.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.align.calls import same_value
from parity.measure.exclusive import Exclusives
from parity.force.common import Arrays, NotMeasured
from parity.traces.float64 import RecordedFloat64
from parity.traces.shards import Array
from parity.judge.verdict import fail_limit, grade
from parity.run.part import rows_of
from parity.judge.faults import Found
from parity.measure.free import Free, Key, measure_free
from parity.core.arrays import comparable, read
from parity.core.metrics import distance, unit_roundoff
from parity.measure.noise import score
from parity.host.progress import Progress
from parity.core.calls import Call, LeafMatch, Match
from parity.core.pair import Case
from parity.core.measurements import ChildInput, Error
from parity.core.problems import not_measured, other_value, Problem
from parity.core.store import Buffer, Store

NAN = math.nan

UNLIKE = "not measured: what it was given is not the same in both"

NO_FLOAT64 = "not measured: the trace has no float64 values of it"


def half(*dtypes: np.dtype[Any]) -> float:
    """Relative distance up to which what a call was given counts as the same.

    Half of the digits of the coarsest type, 2.4e-4 in float32, which exact ones are taken for:
    rounding alone makes no more of it in a network that is of use.
    """
    return math.sqrt(max(unit_roundoff(dtype) or 2.0**-24 for dtype in dtypes))


@dataclass(frozen=True)
class Judged:
    """The rows, the free-running errors, and the arrays that differ where calls were given the same
    to the bit.
    """

    found: Sequence[Found]
    free: Free
    exclusives: Exclusives


def judge_apart(
    case: Case,
    matches: Sequence[Match],
    calls: Sequence[Call],
    float64: RecordedFloat64,
    store: Store,
    progress: Progress,
) -> Judged:
    """Measure and judge the matched calls of one case; `calls` are all of the reference's.

    What a call was given beside arrays counts too: both sides are of one framework.
    """
    work = _Work(matches, float64, store, progress)
    progress.stage("what each call was given", len(matches))
    unknown = float64.own(matches, calls, store, work.heard, {m.ref.order for m in matches})
    exclusives, inclusive = work.result(unknown), work.inclusive()
    found = rows_of(case, matches, (), work.free, inclusive, exclusives, ())
    return Judged([work.shown(one) for one in found], work.free, exclusives)


class _Work:
    """What has been measured so far; by the `order` of calls, and by the names of leaves."""

    def __init__(
        self,
        matches: Sequence[Match],
        float64: RecordedFloat64,
        store: Store,
        progress: Progress,
    ) -> None:
        self._matches = {match.ref.order: match for match in matches}
        self._float64, self._store = float64, store
        self._progress = progress
        self._inside: dict[int, list[Match]] = defaultdict(list)
        for match in matches:
            self._inside[match.parent].append(match)
        self.free = measure_free(matches, store, progress)
        self._distances: dict[tuple[Buffer, Buffer, bool], float] = {}
        self._values = {order: tuple(_values(match)) for order, match in self._matches.items()}
        self._given = {
            order: max([self._largest(match.inputs), *(off for *_, off in self._values[order])])
            for order, match in self._matches.items()
        }
        self._returned = {
            order: self._largest(match.outputs) for order, match in self._matches.items()
        }
        self._errors: dict[Key, Error] = {}
        self._handed: dict[int, list[ChildInput]] = defaultdict(list)
        self._outputs: dict[Key, Buffer] = {}
        self._received: dict[Key, Buffer] = {}

    def heard(self, match: Match, handed: Arrays, outputs: Arrays) -> None:
        """Measure a call, given what the reference's did in float64."""
        order = match.ref.order
        before = self._before(order)
        for leaf in match.outputs:
            if comparable(leaf):
                wide = outputs.get(leaf.ref.name)
                key = (order, leaf.ref.name)
                self._errors[key] = self._score(match.ref.kind, leaf, wide, before)
                self._keep(self._outputs, key, leaf, before)
        if match.parent in self._matches:
            self._hear_inputs(match, handed)
        self._progress.advance()

    def _hear_inputs(self, match: Match, handed: Arrays) -> None:
        order, parent = match.ref.order, self._matches[match.parent].ref
        earlier = [m for m in self._inside[match.parent] if m.ref.order < order]
        before = max([self._given[parent.order], *(self._returned[m.ref.order] for m in earlier)])
        after = earlier[-1].ref.path if earlier else ""
        for name, other, off in self._values[order]:
            if math.isinf(off) and before <= half(np.dtype(np.float32)):
                error = Error(NAN, NAN, 0, problem=other)
                self._handed[parent.order].append(
                    ChildInput(parent.order, order, match.ref.path, name, after, error)
                )
        for leaf in match.inputs:
            if not comparable(leaf) or self._alike(leaf):
                continue
            error = self._score(parent.kind, leaf, handed.get(leaf.ref.name), before)
            if error.bounded or error.problem:  # a problem is one of what the parent returns too
                continue
            if not unit_roundoff(self._arrays(leaf)[0].dtype):
                error = replace(error, moved=True)  # exact whatever was computed
            elif math.isnan(error.r) and not error.nonfinite:
                error = replace(error, problem=not_measured(NO_FLOAT64))
            key = (order, leaf.ref.name)
            self._handed[parent.order].append(
                ChildInput(parent.order, *key[:1], match.ref.path, key[1], after, error)
            )
            self._keep(self._received, key, leaf, before)

    def _keep(self, arrays: dict[Key, Buffer], key: Key, leaf: LeafMatch, before: float) -> None:
        """The port's array, where its error is all its own."""
        if before == 0.0 and leaf.port is not None and leaf.port.buffer:
            arrays[key] = leaf.port.buffer

    def result(self, unknown: Mapping[int, str]) -> Exclusives:
        """What was measured; `unknown` says of what the reference did not tell its float64."""
        for order, match in self._matches.items():
            for leaf in match.outputs:
                key = (order, leaf.ref.name)
                if not comparable(leaf):
                    continue
                if key not in self._errors:
                    before = self._before(order)
                    self._errors[key] = self._score(match.ref.kind, leaf, None, before)
                error = self._errors[key]
                if unknown.get(order) and not error.problem and not error.bounded:
                    self._errors[key] = replace(error, problem=not_measured(unknown[order]))
        handed = {order: tuple(found) for order, found in self._handed.items()}
        return Exclusives(self._errors, handed, self._outputs, self._received)

    def inclusive(self) -> dict[Key, Error]:
        """Errors with all that is inside a call; its MAE only where it was given the same."""
        found: dict[Key, Error] = {}
        for order, match in self._matches.items():
            wide: Arrays = {}
            problem, given = not_measured(NO_FLOAT64), self._given[order]
            if self._inside[order]:
                try:
                    wide = self._float64.whole(match.ref, self._store)
                except NotMeasured as error:
                    problem = not_measured(str(error))
            for leaf in match.outputs:
                if not comparable(leaf):
                    continue
                key = (order, leaf.ref.name)
                one = self._errors[key]
                if self._inside[order]:
                    array = wide.get(leaf.ref.name)
                    one = self._score(match.ref.kind, leaf, array, given)
                    if math.isnan(one.r) and not one.bounded and not one.nonfinite:
                        one = replace(one, problem=one.problem or problem)
                known = given == 0.0
                one = one if known else replace(one, mae=NAN, rel_l2=NAN)
                found[key] = one.of_subtree()
        return found

    def shown(self, one: Found) -> Found:
        """The row as reports have it: what is not known exactly is no error of the call's own."""
        row = one.row
        if row.exclusive is not None and self._before(row.order) > 0:
            row = replace(row, exclusive=replace(row.exclusive, mae=NAN, rel_l2=NAN))
        if row.inclusive is not None and math.isnan(row.inclusive.mae):
            row = replace(row, grade="" if row.metrics is None else grade(row.metrics.mae))
        return replace(one, row=row)

    def _before(self, order: int) -> float:
        """How far off is what the call's own code got: its inputs, and from the calls inside it."""
        inner = (self._returned[match.ref.order] for match in self._inside[order])
        return max([self._given[order], *inner])

    def _largest(self, leaves: Sequence[LeafMatch]) -> float:
        return max(map(self._off, leaves), default=0.0)

    def _off(self, leaf: LeafMatch) -> float:
        """Relative distance of the two arrays of a leaf: of exact values 0 or infinite."""
        if leaf.declared:
            return 0.0
        if leaf.problem:
            return math.inf
        buffers = comparable(leaf)
        if buffers is None or self._alike(leaf):
            return 0.0
        if buffers[0].dtype.kind in "biu":
            return 0.0 if np.array_equal(*self._arrays(leaf)) else math.inf
        job = (*buffers, leaf.undo)
        if job not in self._distances:
            found = distance(*self._arrays(leaf))[1]
            self._distances[job] = 0.0 if math.isnan(found) else found
        return self._distances[job]

    def _alike(self, leaf: LeafMatch) -> bool:
        """Whether both are the same bytes."""
        buffers = comparable(leaf)
        return buffers is not None and not leaf.undo and buffers[0].digest == buffers[1].digest

    def _arrays(self, leaf: LeafMatch) -> tuple[Array, Array]:
        buffers = comparable(leaf)
        assert buffers is not None
        return read(self._store, buffers[0], leaf.undo), self._store.get(buffers[1])

    def _score(self, kind: str, leaf: LeafMatch, wide: Array | None, before: float) -> Error:
        """The error of code that got what is off by `before`; see the top of this file for R."""
        ref, port = self._arrays(leaf)
        unit, alike = unit_roundoff(ref.dtype), self._alike(leaf)
        if before > half(ref.dtype, port.dtype) or (before > 0 and not unit and not alike):
            size = f", relative {before:.1e}" if before < math.inf else ""
            return Error.unknown(UNLIKE + size)
        if alike and wide is None:
            return Error(0.0, 0.0, 0, bounded=True)
        error = replace(score(ref, port, wide), moved=False)
        if not unit or error.nonfinite:
            return replace(error, bounded=error.mae == 0)
        scale = max(4 * unit, before)
        if math.isnan(error.r):
            near = 1 + error.rel_l2 * (1 + 1 / scale) <= fail_limit(kind)
            return replace(error, bounded=near)
        floor = max(error.floor_rel_l2, scale)
        r = error.r * max(error.floor_rel_l2, 4 * unit) / floor
        return replace(error, r=r)


def _values(match: Match) -> Iterator[tuple[str, Problem | None, float]]:
    """What a call was given otherwise that is no array: its name, what it is, and how far off."""
    theirs = {leaf.name: leaf.value for leaf in match.port.inputs if leaf.buffer is None}
    for leaf in match.ref.inputs:
        if leaf.buffer is not None or leaf.name not in theirs:
            continue
        ref, port = leaf.value, theirs[leaf.name]
        if not same_value(ref, port):
            yield leaf.name, other_value(ref, port), math.inf
        elif isinstance(ref, float) and ref != port and math.isfinite(ref):
            yield leaf.name, None, abs(ref - port) / abs(ref)
