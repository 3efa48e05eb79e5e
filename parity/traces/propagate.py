"""Errors of two recorded runs: nothing is run again, and no call is given another's arrays.

A call is judged by what it was given in both. Where that is the same to the bit, what it returns
is its own error, exactly; where it is the same up to rounding, R counts in units of what it was
given as well, as far as that is more than rounding; where it is not, nothing is known of the call.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.align.leaves import same_value
from parity.core.arrays import comparable, read
from parity.core.calls import LeafMatch, Match, Reading
from parity.core.measurements import ChildInput, Error
from parity.core.metrics import distance, unit_roundoff
from parity.core.problems import Problem, not_measured, other_value
from parity.core.store import Buffer, Store
from parity.force.common import Arrays, NotMeasured
from parity.host.progress import Progress
from parity.judge.verdict import fail_limit
from parity.measure.exclusive import Exclusives
from parity.measure.free import Key
from parity.measure.noise import score
from parity.traces.float64 import RecordedFloat64
from parity.traces.shards import Array

NAN = math.nan

UNLIKE = "not measured: what it was given is not the same in both"

NO_FLOAT64 = "not measured: the trace has no float64 values of it"


def half(*dtypes: np.dtype[Any]) -> float:
    """Relative distance up to which what a call was given counts as the same.

    Half of the digits of the coarsest type, 2.4e-4 in float32, which exact ones are taken for:
    rounding alone makes no more of it in a network that is of use.
    """
    return math.sqrt(max(unit_roundoff(dtype) or 2.0**-24 for dtype in dtypes))


class PropagatedErrors:
    """Errors measured so far, by the `order` of calls and the names of leaves."""

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
        self._distances: dict[tuple[Buffer, Buffer, Reading | None], float] = {}
        self._values = {order: tuple(_values(match)) for order, match in self._matches.items()}
        self._given = {
            order: max([self._largest(match.inputs), *(off for *_, off in self._values[order])])
            for order, match in self._matches.items()
        }
        self._returned = {
            order: self._largest(match.outputs) for order, match in self._matches.items()
        }
        self._errors: dict[Key, Error] = {}
        self._child_inputs: dict[int, list[ChildInput]] = defaultdict(list)
        self._outputs: dict[Key, Buffer] = {}
        self._received: dict[Key, Buffer] = {}

    def measure(self, match: Match, child_inputs: Arrays, outputs: Arrays) -> None:
        """Measure a call, given its inputs and outputs in float64."""
        order = match.ref.order
        before = self.before(order)
        for leaf in match.outputs:
            if comparable(leaf):
                wide = outputs.get(leaf.ref.name)
                key = (order, leaf.ref.name)
                self._errors[key] = self._score(match.ref.kind, leaf, wide, before)
                self._keep(self._outputs, key, leaf, before)
        if match.parent in self._matches:
            self._score_inputs(match, child_inputs)
        self._progress.advance()

    def _score_inputs(self, match: Match, wide: Arrays) -> None:
        """Measure what the parent passed to a call; `wide` is that in float64."""
        order, parent = match.ref.order, self._matches[match.parent].ref
        earlier = [m for m in self._inside[match.parent] if m.ref.order < order]
        before = max([self._given[parent.order], *(self._returned[m.ref.order] for m in earlier)])
        after = earlier[-1].ref.path if earlier else ""
        path, found = match.ref.path, self._child_inputs[parent.order]
        for name, other, off in self._values[order]:
            if math.isinf(off) and before <= half(np.dtype(np.float32)):
                error = Error(NAN, NAN, 0, problem=other)
                found.append(ChildInput(parent.order, order, path, name, after, error))
        for leaf in match.inputs:
            if comparable(leaf) and not self._alike(leaf):
                name = leaf.ref.name
                error = self._score(parent.kind, leaf, wide.get(name), before)
                # a problem is one of what the parent returns too
                if not error.bounded and not error.problem:
                    error = self._of_input(error, leaf)
                    found.append(ChildInput(parent.order, order, path, name, after, error))
                    self._keep(self._received, (order, name), leaf, before)

    def _of_input(self, error: Error, leaf: LeafMatch) -> Error:
        if not unit_roundoff(self._arrays(leaf)[0].dtype):
            return replace(error, moved=True)  # exact whatever was computed
        unknown = math.isnan(error.r) and not error.nonfinite
        return replace(error, problem=not_measured(NO_FLOAT64)) if unknown else error

    def _keep(self, arrays: dict[Key, Buffer], key: Key, leaf: LeafMatch, before: float) -> None:
        """The port's array, where its error is all its own."""
        if before == 0.0 and leaf.port is not None and leaf.port.buffer:
            arrays[key] = leaf.port.buffer

    def result(self, unknown: Mapping[int, str]) -> Exclusives:
        """Exclusive errors; `unknown` says why calls have no float64 values."""
        for order, match in self._matches.items():
            for leaf in match.outputs:
                key = (order, leaf.ref.name)
                if not comparable(leaf):
                    continue
                if key not in self._errors:
                    before = self.before(order)
                    self._errors[key] = self._score(match.ref.kind, leaf, None, before)
                error = self._errors[key]
                if unknown.get(order) and not error.problem and not error.bounded:
                    self._errors[key] = replace(error, problem=not_measured(unknown[order]))
        passed = {order: tuple(found) for order, found in self._child_inputs.items()}
        return Exclusives(self._errors, passed, self._outputs, self._received)

    def inclusive(self) -> dict[Key, Error]:
        """Errors with all that is inside a call; its MAE only where it was given the same."""
        return {
            (order, leaf.ref.name): self._inclusive(match, leaf, wide, problem)
            for order, match in self._matches.items()
            for wide, problem in [self._whole(match)]
            for leaf in match.outputs
            if comparable(leaf)
        }

    def _whole(self, match: Match) -> tuple[Arrays, str]:
        """Outputs of a container in float64, or why they are not known."""
        if not self._inside[match.ref.order]:
            return {}, ""
        try:
            return self._float64.whole(match.ref, self._store), ""
        except NotMeasured as error:
            return {}, str(error)

    def _inclusive(self, match: Match, leaf: LeafMatch, wide: Arrays, problem: str) -> Error:
        order, given = match.ref.order, self._given[match.ref.order]
        one = self._errors[order, leaf.ref.name]
        if self._inside[order]:
            one = self._score(match.ref.kind, leaf, wide.get(leaf.ref.name), given)
            if math.isnan(one.r) and not one.bounded and not one.nonfinite:
                one = replace(one, problem=one.problem or not_measured(problem or NO_FLOAT64))
        one = one if given == 0.0 else replace(one, mae=NAN, rel_l2=NAN)
        return one.of_subtree()

    def before(self, order: int) -> float:
        """Largest relative error of the inputs, and of what the calls inside returned."""
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
        job = (*buffers, leaf.reading)
        if job not in self._distances:
            found = distance(*self._arrays(leaf))[1]
            self._distances[job] = 0.0 if math.isnan(found) else found
        return self._distances[job]

    def _alike(self, leaf: LeafMatch) -> bool:
        """True if both are the same bytes."""
        buffers = comparable(leaf)
        return buffers is not None and not leaf.reading and buffers[0].digest == buffers[1].digest

    def _arrays(self, leaf: LeafMatch) -> tuple[Array, Array]:
        buffers = comparable(leaf)
        assert buffers is not None
        return read(self._store, buffers[0], leaf.reading), self._store.get(buffers[1])

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
    """Values besides arrays that a call was given otherwise: name, text, relative distance."""
    others = {leaf.name: leaf.value for leaf in match.port.inputs if leaf.buffer is None}
    for leaf in match.ref.inputs:
        if leaf.buffer is not None or leaf.name not in others:
            continue
        ref, port = leaf.value, others[leaf.name]
        if not same_value(ref, port):
            yield leaf.name, other_value(ref, port), math.inf
        elif isinstance(ref, float) and ref != port and math.isfinite(ref):
            yield leaf.name, None, abs(ref - port) / abs(ref)
