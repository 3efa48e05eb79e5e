"""Judged rows of two recorded runs: nothing is run again, and no call is given another's arrays.

A call is judged by what it was given in both. Where that is the same to the bit, what it returns
is its own error; where it is the same up to rounding, R counts in units of what it was given, as
far as that is more than rounding; where it is not, nothing is known of the call.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.align.leaves import same_value
from parity.align.norms import with_norms
from parity.core.arrays import Array, comparable
from parity.core.calls import LeafMatch, Match
from parity.core.limits import fail_limit
from parity.core.measurements import ChildInput, Error
from parity.core.metrics import distance, unit_roundoff
from parity.core.pair import Case
from parity.core.problems import not_measured, other_value
from parity.core.store import Buffer, Store
from parity.force.common import Arrays, Float64, NotMeasured, Recording
from parity.judge.faults import Found
from parity.judge.rows import rows_of
from parity.measure.exclusive import Exclusives
from parity.measure.free import Free, Key
from parity.measure.noise import score

UNLIKE = "not measured: what it was given is not the same in both"

NO_FLOAT64 = "not measured: the trace has no float64 values of it"

SAME = Error(0.0, 0.0, 0, bounded=True)


def judge_apart(
    case: Case, recording: Recording, float64: Float64, free: Free
) -> tuple[Sequence[Found], Exclusives]:
    """Judged rows of the matched calls of one case, and their errors.

    The calls of `recording` are the reference's.

    What a container returns, with all that is inside it, is measured where its local error fails.
    """
    matches = with_norms(recording.matches, recording.calls)
    wide: dict[int, tuple[Arrays, Arrays]] = {}

    def heard(match: Match, passed: Arrays, outputs: Arrays) -> None:
        wide[match.ref.order] = passed, outputs

    orders = {match.ref.order for match in matches}
    unknown = float64.own(recording, heard, orders)
    work = _Work(matches, recording.store)
    for match in matches:
        passed, outputs = wide.get(match.ref.order, ({}, {}))
        work.measure(match, outputs, unknown.get(match.ref.order, NO_FLOAT64))
        work.measure_inputs(match, passed)
    children = {order: tuple(found) for order, found in work.child_inputs.items()}
    exclusives = Exclusives(work.errors, children, work.outputs, work.received)
    equal = {key: SAME for key, error in free.errors.items() if error.mae == 0}
    containers = {match.parent for match in matches}
    inclusive = {key: x.of_subtree() for key, x in work.errors.items() if key[0] not in containers}
    around = containers & exclusives.failing(matches)
    for match in (match for match in matches if match.ref.order in around):
        inclusive |= work.whole(match, float64)
    return rows_of(case, matches, (), free, inclusive | equal, exclusives, ()), exclusives


def half(*dtypes: np.dtype[Any]) -> float:
    """Relative distance up to which what a call was given counts as the same.

    Half of the digits of the coarsest type, 2.4e-4 in float32, which exact ones are taken for:
    rounding alone makes no more of it in a network that is of use.
    """
    return math.sqrt(max(unit_roundoff(dtype) or 2.0**-24 for dtype in dtypes))


class _Work:
    """Errors measured so far, by the `order` of calls and the names of leaves."""

    def __init__(self, matches: Sequence[Match], store: Store) -> None:
        self._store = store
        self._matches = {match.ref.order: match for match in matches}
        self._inside: dict[int, list[Match]] = defaultdict(list)
        for match in matches:
            self._inside[match.parent].append(match)
        self._off: dict[tuple[Buffer, Buffer], float] = {}
        self._given = {
            order: math.inf if _values(match) else self._largest(match.inputs)
            for order, match in self._matches.items()
        }
        self._returned = {order: self._largest(m.outputs) for order, m in self._matches.items()}
        self.errors: dict[Key, Error] = {}
        self.child_inputs: dict[int, list[ChildInput]] = defaultdict(list)
        self.outputs: dict[Key, Buffer] = {}
        self.received: dict[Key, Buffer] = {}

    def measure(self, match: Match, wide: Arrays, problem: str) -> None:
        """Measure what a call returned; `wide` is that in float64, or not known for `problem`."""
        order = match.ref.order
        before = self._before(match, self._inside[order])
        for leaf in match.outputs:
            if comparable(leaf):
                key = order, leaf.ref.name
                error = self._score(match.ref.kind, leaf, wide.get(leaf.ref.name), before)
                self.errors[key] = _known(error, problem)
                self._keep(self.outputs, key, leaf, before)

    def measure_inputs(self, match: Match, wide: Arrays) -> None:
        """Measure what the parent passed to a call; `wide` is that in float64."""
        parent, order = self._matches.get(match.parent), match.ref.order
        if parent is None:
            return
        earlier = [m for m in self._inside[match.parent] if m.ref.order < order]
        before = self._before(parent, earlier)
        errors = {
            name: Error(math.nan, math.nan, 0, problem=other_value(ref, port))
            for name, (ref, port) in _values(match).items()
            if before <= half(np.dtype(np.float32))
        }
        for leaf in match.inputs:
            if comparable(leaf) and self._distance(leaf) > 0:
                name = leaf.ref.name
                error = self._score(parent.ref.kind, leaf, wide.get(name), before)
                # a problem is one of what the parent returns too
                if not error.bounded and not error.problem:
                    exact = not unit_roundoff(self._arrays(leaf)[0].dtype)
                    error = replace(error, moved=True) if exact else _known(error, NO_FLOAT64)
                    errors[name] = error
                    self._keep(self.received, (order, name), leaf, before)
        after = earlier[-1].ref.path if earlier else ""
        self.child_inputs[match.parent] += [
            ChildInput(match.parent, order, match.ref.path, name, after, error)
            for name, error in errors.items()
        ]

    def whole(self, match: Match, float64: Float64) -> Mapping[Key, Error]:
        """Errors of what a call returns with all that is inside it, as far as they are known."""
        try:
            wide = float64.whole(match.ref, self._store)
        except NotMeasured:
            return {}
        order, kind = match.ref.order, match.ref.kind
        errors = {
            (order, leaf.ref.name): self._score(
                kind, leaf, wide.get(leaf.ref.name), self._given[order]
            )
            for leaf in match.outputs
            if comparable(leaf)
        }
        known = {key: one for key, one in errors.items() if not _known(one, NO_FLOAT64).problem}
        return {key: one.of_subtree() for key, one in known.items()}

    def _before(self, match: Match, inner: Collection[Match]) -> float:
        """Largest relative error of what a call was given, and of what these inside it returned."""
        return max([self._given[match.ref.order], *(self._returned[m.ref.order] for m in inner)])

    def _keep(self, kept: dict[Key, Buffer], key: Key, leaf: LeafMatch, before: float) -> None:
        """The port's array, where its error is all its own."""
        if before == 0.0 and leaf.port is not None and leaf.port.buffer:
            kept[key] = leaf.port.buffer

    def _largest(self, leaves: Sequence[LeafMatch]) -> float:
        return max((self._distance(leaf) for leaf in leaves if not leaf.declared), default=0.0)

    def _distance(self, leaf: LeafMatch) -> float:
        """Relative distance of the two arrays of a leaf: of exact values 0 or infinite."""
        buffers = comparable(leaf)
        if leaf.problem or buffers is None:
            return math.inf if leaf.problem else 0.0
        if buffers not in self._off:
            ref, port = self._arrays(leaf)
            if buffers[0].digest == buffers[1].digest or np.array_equal(ref, port):
                self._off[buffers] = 0.0
            else:
                found = math.inf if ref.dtype.kind in "biu" else distance(ref, port)[1]
                self._off[buffers] = 0.0 if math.isnan(found) else found
        return self._off[buffers]

    def _arrays(self, leaf: LeafMatch) -> tuple[Array, Array]:
        buffers = comparable(leaf)
        assert buffers is not None
        return self._store.get(buffers[0]), self._store.get(buffers[1])

    def _score(self, kind: str, leaf: LeafMatch, wide: Array | None, before: float) -> Error:
        """The error of code that got what is off by `before`; see the top of this file for R."""
        ref, port = self._arrays(leaf)
        unit = unit_roundoff(ref.dtype)
        exact = not unit and self._distance(leaf) > 0
        if before > half(ref.dtype, port.dtype) or (before > 0 and exact):
            size = f", relative {before:.1e}" if before < math.inf else ""
            return Error.unknown(UNLIKE + size)
        error = replace(score(ref, port, wide), moved=False)
        if not unit or error.nonfinite:
            return replace(error, bounded=error.mae == 0)
        scale = max(4 * unit, before)
        if math.isnan(error.r):
            near = 1 + error.rel_l2 * (1 + 1 / scale) <= fail_limit(kind)
            return replace(error, bounded=near)
        floor = error.floor_rel_l2
        return replace(error, r=error.r * max(floor, 4 * unit) / max(floor, scale))


def _known(error: Error, problem: str) -> Error:
    """The error, with the reason where neither R is known nor a bound of it."""
    if math.isnan(error.r) and not (error.bounded or error.nonfinite or error.problem):
        return replace(error, problem=not_measured(problem))
    return error


def _values(match: Match) -> Mapping[str, tuple[Any, Any]]:
    """Values besides arrays that a call was given otherwise, of both sides by name."""
    others = {leaf.name: leaf.value for leaf in match.port.inputs if leaf.buffer is None}
    pairs = {
        leaf.name: (leaf.value, others[leaf.name])
        for leaf in match.ref.inputs
        if leaf.buffer is None and leaf.name in others
    }
    return {name: pair for name, pair in pairs.items() if not same_value(*pair)}
