"""Float64 runs of the reference of a golden trace, as they were recorded.

A trace holds the difference from the recorded array, in float32: relative to the array that is
exact to about 2**-48 where the reference is off by rounding, so R is right to six digits.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from parity.core.arrays import Array, LazyArrays
from parity.core.calls import Call, Leaf, above
from parity.core.store import Store
from parity.force.common import Arrays, Listener, NotMeasured, Recording
from parity.traces.arrays import ArrayFolder
from parity.traces.index import StoredCase, Wide

APART = (
    "not measured: the trace has its float64 values with {} apart, and the port does not call it"
)


class RecordedFloat64:
    """One case as it ran in float64 when it was recorded: a `Float64`."""

    def __init__(self, case: StoredCase, arrays: ArrayFolder) -> None:
        self._case, self._arrays = case, arrays

    def own(
        self, recording: Recording, listener: Listener, wanted: Collection[int], sample: int = 0
    ) -> Mapping[int, str]:
        """Tell what was recorded, as far as the calls inside are those of the port.

        Of a call the local computation counts if the port makes all calls inside it, and that with
        all that is inside if it makes none. Of others the latter counts too, which is further from
        the reference than their local computation: R in units of that may fail them, and pass none.
        """
        matches, calls = recording.matches, recording.calls
        if self._case.problem:
            return {match.ref.order: self._case.problem for match in matches}
        matched = {match.ref.order for match in matches}
        inside: dict[int, list[int]] = defaultdict(list)
        for one in calls:
            inside[one.parent].append(one.order)
        parents = {one.order: one.parent for one in calls}
        unknown: dict[int, str] = {}
        for match in matches:
            order, around = match.ref.order, match.ref.parent
            wide, unmatched = self._case.float64[order], set(inside[order]) - matched
            passed: Arrays = {}
            if around != -1 and around == match.parent and matched.issuperset(inside[around]):
                passed = self._wider(match.ref.inputs, wide.passed)
            outputs = self._wider(match.ref.outputs, wide.whole if unmatched else wide.own)
            deeper = any(order in above(parents[one], parents) for one in matched)
            if unmatched and (wide.problem or deeper):
                path = self._case.calls[min(unmatched)].path
                unknown[order] = wide.problem or APART.format(f"`{path}`")
            listener(match, passed, outputs if order in wanted else {})
        return unknown

    def whole(self, call: Call, store: Store) -> Arrays:
        """Recorded outputs; without calls inside they are those of the local computation."""
        wide = self._case.float64[call.order]
        inside = any(one.parent == call.order for one in self._case.calls)
        if problem := wide.problem if inside else self._case.problem:
            raise NotMeasured(problem)
        return self._wider(call.outputs, wide.whole if inside else wide.own)

    def returned(self, order: int, leaf: str) -> Array | None:
        """Output of a call by its local computation."""
        return self._wider(self._case.calls[order].outputs, self._case.float64[order].own).get(leaf)

    def child_input(self, order: int, leaf: str) -> Array | None:
        """Input of a call, as its parent computes it."""
        wide = self._case.float64[order].passed
        return self._wider(self._case.calls[order].inputs, wide).get(leaf)

    def _wider(self, leaves: Sequence[Leaf], wide: Wide) -> Arrays:
        """Arrays in float64: the recorded ones and what was recorded on top of them."""
        buffers = {x.name: x.buffer for x in leaves if x.buffer and x.name in wide}

        def read(name: str) -> Array:
            buffer, more = buffers[name], wide[name]
            kind = np.complex128 if buffer.dtype.kind == "c" else np.float64
            array = self._arrays.read(buffer).astype(kind)
            return array if more is None else array + self._arrays.read(more)

        return LazyArrays(buffers, read)
