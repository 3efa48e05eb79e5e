"""The reference of a golden trace, in place of one that runs."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from parity.diagnose import direct
from parity.diagnose.evident import by_kind, by_repetition, suspected
from parity.diagnose.scene import EXPLAINED, HINTS, Scene
from parity.diagnose.where import where
from parity.core.arrays import Array
from parity.traces.float64 import RecordedFloat64
from parity.traces.index import StoredCase
from parity.traces.trace import Golden, adopted
from parity.judge.faults import Found
from parity.core.pair import Case
from parity.core.verdicts import Diagnosis
from parity.core.calls import Match, Trace
from parity.core.store import Store
from parity.core.tree import rebuild

BY_RUN = "`parity run`, where torch is installed, finds out why by experiment"


class Recorded:
    """A golden trace as the reference of `run_case`."""

    def __init__(self, golden: Golden) -> None:
        self._golden = golden
        self._cases = {case.key: case for case in golden.index.cases}

    def arguments(
        self, case: Case, layout: Mapping[str, str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As they were recorded, in the port's layout."""
        stored = self._of(case)
        given = rebuild(stored.arguments, [self._golden.reader.read(x) for x in stored.given])
        args, kwargs = given
        return tuple(args), dict(kwargs)

    def paths(self) -> Collection[str]:
        """Those of the model, recorded or not."""
        return self._golden.modules.keys()

    def record(
        self,
        case: Case,
        store: Store,
        layout: Mapping[str, str],
        inside: Collection[str] | None,
    ) -> Trace:
        """As it was recorded, with the choice that a check makes too."""
        stored = self._of(case)
        return adopted(stored.calls, stored.modules, self._golden.reader, store)

    def float64(self, case: Case) -> RecordedFloat64:
        """What was recorded of its float64 runs."""
        return RecordedFloat64(self._of(case), self._golden.reader)

    def diagnose(self, found: Found, scene: Scene) -> Diagnosis:
        """What the arrays and the weights show: nothing of the reference can be changed."""
        match = next(m for m in scene.matches if m.ref.order == found.row.order)
        for cause, evidence in chain(by_kind(found, match), by_repetition(match, scene)):
            return Diagnosis(cause, evidence, HINTS[cause])
        arrays = next(_wrong(found, match, scene), None)
        place = where(*arrays) if arrays else ""
        lines = suspected(match, scene)
        if lines:
            evidence = "; ".join([*(line.text for line in lines[:3]), *filter(None, [place])])
            return Diagnosis(lines[0].cause, evidence, HINTS[lines[0].cause])
        left, cause, text = direct.best(*arrays) if arrays else (math.inf, "", "")
        if left <= EXPLAINED:
            evidence = f"{text} explains {100 * (1 - left):.4g} % of the error, {place}"
            return Diagnosis(cause, evidence, HINTS[cause])
        container = any(one.parent == match.ref.order for one in scene.matches)
        return Diagnosis("glue" if container else "unknown", place, BY_RUN)

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """As the classes of the reference said."""
        return self._of(case).optional

    def notes(self, case: Case) -> tuple[str, ...]:
        """Those of the recorded run."""
        return self._of(case).notes

    def _of(self, case: Case) -> StoredCase:
        return self._cases[case.name, case.path]


def _wrong(found: Found, match: Match, scene: Scene) -> Iterator[tuple[Array, Array]]:
    """The reference in float64 and the port, where the call goes wrong: what it hands on first."""
    float64 = scene.sides.reference
    assert isinstance(float64, RecordedFloat64)  # `Recorded.float64` made it
    for handed in found.handed:
        buffer = scene.exclusives.received.get((handed.child, handed.leaf))
        ref = float64.handed(handed.child, handed.leaf)
        if ref is not None and buffer is not None:
            yield ref, scene.store.get(buffer)
    errors = scene.exclusives.errors
    keys = [(match.ref.order, leaf.ref.name) for leaf in match.outputs]
    for key in sorted((key for key in keys if key in scene.exclusives.outputs),
                      key=lambda key: -errors[key].rel_l2):  # fmt: skip
        ref = float64.returned(*key)
        if ref is not None:
            yield ref, scene.store.get(scene.exclusives.outputs[key])
