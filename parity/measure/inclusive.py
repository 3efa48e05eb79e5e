"""Inclusive error: every module of the port is fed the reference's inputs for each of its calls.

A call that has no other inside it has been measured already: its inclusive error is its exclusive
one. A container is run again, unless it got the very inputs of the reference in the port's own run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.core.arrays import Array, as_read, comparable
from parity.core.calls import Match, above
from parity.core.exceptions import first_line
from parity.core.limits import fail_limit
from parity.core.measurements import Error
from parity.core.problems import Problem, not_measured
from parity.core.store import Store
from parity.core.thread_pool import Background
from parity.core.tree import flatten
from parity.force.common import (
    Arrays,
    NotMeasured,
    Sides,
    by_port_leaf,
    reference,
    same,
    unforced,
    values,
)
from parity.force.nnx import repeat
from parity.host.progress import Progress
from parity.measure.exclusive import NOT_REPEATABLE, Exclusives
from parity.measure.free import Key
from parity.measure.noise import bounded, score

SLACK = 4
"""How far above its limit R of a whole subtree may be, at worst, where the float64 run is left out.
Each call inside was judged by its own R: this is for code that no call inside shows."""


def measure_inclusive(
    matches: Sequence[Match],
    exclusives: Exclusives,
    sides: Sides,
    store: Store,
    progress: Progress,
) -> Mapping[Key, Error]:
    """Run each container on the reference's inputs and measure its outputs.

    The reference is run in float64 for a container that fails by its exclusive error, to confirm
    that, and for one that is too far from the reference though nothing inside it fails.
    """
    found: dict[Key, Error] = {}
    containers = {match.parent for match in matches}
    waiting: list[Match] = []
    for match in matches:
        if match.ref.tapped or match.port.tapped:
            continue  # no call that could be made by itself
        measured = {} if match.ref.order in containers else _as_exclusive(match, exclusives)
        found |= measured
        if not measured:
            waiting.append(match)
    progress.stage("inclusive error", len(waiting))
    failing = exclusives.failing(matches)
    # the output of the code around a tap shows if that code makes up for it
    failing |= {m.parent for m in matches if m.ref.tapped and m.ref.order in failing}
    parents = {match.ref.order: match.parent for match in matches}
    explained = frozenset(x for order in failing for x in above(parents[order], parents))
    run = _Run(sides, store, failing, explained, frozenset(exclusives.calls), progress, found)
    with Background() as background:
        for match in waiting:
            run.measure(match, background)
    return found


def _as_exclusive(match: Match, exclusives: Exclusives) -> dict[Key, Error]:
    """The exclusive errors of a call without others inside, unless they could not be measured."""
    keys = [(match.ref.order, leaf.ref.name) for leaf in match.outputs if comparable(leaf)]
    errors = [exclusives.errors.get(key) for key in keys]
    if any(error is None or (error.problem and error.mae != error.mae) for error in errors):
        return {}
    return {key: error.of_subtree() for key, error in zip(keys, errors, strict=True) if error}


@dataclass(frozen=True)
class _Run:
    """The measurement of one call after the other.

    `failing` calls are wrong by their exclusive error, and `explained` are those around them.
    Those that may have `other` arguments that only the port has are not taken from its own run.
    """

    sides: Sides
    store: Store
    failing: frozenset[int]
    explained: frozenset[int]
    other: frozenset[int]
    progress: Progress
    found: dict[Key, Error]

    def measure(self, match: Match, background: Background) -> None:
        """Take what the port returned if it had the reference's inputs, else run it on them."""
        call = match.port
        exact = all(same(leaf) for leaf in by_port_leaf(match.inputs).values())
        exact &= match.ref.order not in self.other
        problem = unforced(match)
        if not exact and call.arguments is None:
            problem = problem or NOT_REPEATABLE
        if problem:
            self.found.update(_unknown(match, problem))
            self.progress.advance()
            return
        try:
            outputs = self._recorded(match) if exact else self._repeated(match)
        except Exception as error:  # such as a module that only runs inside another
            problem = f"not measured: the port's call cannot be made alone: {first_line(error)}"
            self.found.update(_unknown(match, problem))
            self.progress.advance()
            return
        background.submit(self._measure, match, outputs)

    def _recorded(self, match: Match) -> Mapping[str, Array]:
        recorded = [(leaf.name, leaf.buffer) for leaf in match.port.outputs]
        return {name: self.store.get(buffer) for name, buffer in recorded if buffer}

    def _repeated(self, match: Match) -> Mapping[str, Array]:
        """Outputs of the port on the reference's inputs."""
        call, given = match.port, values(match, self.store)
        method = self.sides.nnx_method if match.ref.parent == -1 else "__call__"
        output = flatten(repeat(self.sides.module(match), method, call, given))
        return {name: np.asarray(value) for name, value in output.arrays}

    def _measure(self, match: Match, outputs: Mapping[str, Array]) -> None:
        wide: tuple[Arrays, Problem | None] | None = None
        for leaf in match.outputs:
            if not comparable(leaf) or leaf.port is None:
                continue
            ref, port = reference(leaf, self.store), outputs[leaf.port.name]
            error = score(ref, port)
            if self._decided(match, error, ref):
                error = replace(error, bounded=True)
            else:
                wide = wide or self._float64(match)
                array = wide[0].get(leaf.ref.name)
                error = score(ref, port, None if array is None else as_read(array, leaf.reading))
                error = replace(error, problem=error.problem or wide[1])
            self.found[match.ref.order, leaf.ref.name] = error.of_subtree()
        self.progress.advance()

    def _decided(self, match: Match, error: Error, ref: Array) -> bool:
        """True if the verdict needs no run of the reference in float64."""
        order, limit = match.ref.order, SLACK * fail_limit(match.family)
        if ref.dtype.kind not in "fcV" or error.nonfinite or error.problem or np.isnan(error.mae):
            return True
        close = bounded(error.rel_l2, limit, ref.dtype) or order in self.explained
        return close and order not in self.failing

    def _float64(self, match: Match) -> tuple[Arrays, Problem | None]:
        try:
            return self.sides.reference.whole(match.ref, self.store), None
        except NotMeasured as error:
            return {}, not_measured(str(error))


def _unknown(match: Match, problem: str) -> dict[Key, Error]:
    error = Error.unknown(problem)
    return {(match.ref.order, leaf.ref.name): error for leaf in match.outputs if comparable(leaf)}
