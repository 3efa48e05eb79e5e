"""Inclusive error: every module of the port is fed the reference's inputs for each of its calls.

A call that has no other inside it has been measured already: its inclusive error is its exclusive
one. From the root down, then, for the containers: while one runs on the reference's inputs, those
inside it are watched, and one that happens to receive the very inputs of the reference needs no run
of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.capture.hooks_nnx import Observer, observed
from parity.core.arrays import Array, as_read, comparable
from parity.core.calls import Match, above
from parity.core.measurements import Error
from parity.core.problems import Problem, not_measured
from parity.core.store import Store, digest
from parity.core.thread_pool import Background
from parity.core.tree import Flat, flatten
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
from parity.force.nnx import repeat, traced
from parity.host.progress import Progress
from parity.measure.exclusive import NOT_REPEATABLE, Exclusives
from parity.measure.free import Key
from parity.measure.noise import bounded, score

Limit = Callable[[str], float]
_Waiting = dict[str, dict[int, Match]]
"""Matches by the port's path and the `order` of the reference's call."""

SLACK = 4
"""How far above its limit R of a whole subtree may be, at worst, where the float64 run is left out.
Each call inside was judged by its own R: this is for code that no call inside shows."""


def measure_inclusive(
    matches: Sequence[Match],
    exclusives: Exclusives,
    sides: Sides,
    store: Store,
    limit: Limit,
    progress: Progress,
) -> Mapping[Key, Error]:
    """Run each container on the reference's inputs and measure its outputs.

    The reference is run in float64 for a container that fails by its exclusive error, to confirm
    that, and for one that is too far from the reference though nothing inside it fails.
    """
    found: dict[Key, Error] = {}
    containers = {match.parent for match in matches}
    waiting: _Waiting = defaultdict(dict)
    for match in matches:
        if match.ref.tapped or match.port.tapped:
            continue  # no call that could be made by itself
        measured = {} if match.ref.order in containers else _as_exclusive(match, exclusives)
        found |= measured
        if not measured:
            waiting[match.port.path][match.ref.order] = match
    progress.stage("inclusive error", sum(map(len, waiting.values())))
    failing = exclusives.failing(matches, limit)
    # the output of the code around a tap shows if that code makes up for it
    failing |= {m.parent for m in matches if m.ref.tapped and m.ref.order in failing}
    parents = {match.ref.order: match.parent for match in matches}
    explained = frozenset(x for order in failing for x in above(parents[order], parents))
    with Background() as background:
        run = _Run(waiting, sides, store, limit, failing, explained, background, progress, found)
        for match in reversed(matches):
            if match.ref.order in waiting[match.port.path]:
                run.measure(match)
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

    `waiting` are the calls without an inclusive error yet, of which one is taken when its outputs
    on the reference's inputs are known. `failing` calls are wrong by their exclusive error, and
    `explained` are those around them.
    """

    waiting: _Waiting
    sides: Sides
    store: Store
    limit: Limit
    failing: frozenset[int]
    explained: frozenset[int]
    background: Background
    progress: Progress
    found: dict[Key, Error]

    def measure(self, match: Match) -> None:
        """Take what the port returned if it had the reference's inputs, else run it on them."""
        call = match.port
        exact = all(same(leaf) for leaf in by_port_leaf(match.inputs).values())
        problem = unforced(match)
        if not exact and call.arguments is None:
            problem = problem or NOT_REPEATABLE
        if problem:
            del self.waiting[call.path][match.ref.order]
            self.found.update(_unknown(match, problem))
            self.progress.advance()
        elif exact:
            recorded = [(leaf.name, leaf.buffer) for leaf in call.outputs]
            self.take(match, {name: self.store.get(buffer) for name, buffer in recorded if buffer})
        else:
            self.take(match, self._repeated(match))

    def _repeated(self, match: Match) -> Mapping[str, Array]:
        """Outputs of the port on the reference's inputs, watched."""
        call, modules = match.port, self.sides.nnx_modules
        below = f"{call.path}." if call.path else ""
        inside = [p for p, found in self.waiting.items() if found and p and p.startswith(below)]
        method = self.sides.nnx_method if match.ref.parent == -1 else "__call__"
        module, given = self.sides.module(match), values(match, self.store)
        watched = {path: modules[path] for path in inside} if match.turn is None else {}
        with observed(watched, _Watcher(self)):
            output = flatten(repeat(module, method, call, given))
        return {name: np.asarray(value) for name, value in output.arrays}

    def take(self, match: Match, outputs: Mapping[str, Array]) -> None:
        """Measure these outputs on the reference's inputs, beside the run."""
        del self.waiting[match.port.path][match.ref.order]
        self.background.submit(self._measure, match, outputs)

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
        order, limit = match.ref.order, SLACK * self.limit(match.ref.kind)
        if ref.dtype.kind not in "fcV" or error.nonfinite or error.problem or np.isnan(error.mae):
            return True
        close = bounded(error.rel_l2, limit, ref.dtype) or order in self.explained
        return close and order not in self.failing

    def _float64(self, match: Match) -> tuple[Arrays, Problem | None]:
        try:
            return self.sides.reference.whole(match.ref, self.store), None
        except NotMeasured as error:
            return {}, not_measured(str(error))


class _Watcher(Observer):
    """Takes calls inside a repeated one that receive exactly what the reference's did."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self._open: list[list[Match]] = []

    def begin(self, path: str, given: Flat) -> None:
        waiting = [] if traced(given) else self._run.waiting.get(path, {}).values()
        digests = {name: digest(np.asarray(array)) for name, array in given.arrays if waiting}
        self._open.append([m for m in waiting if _receives(m, given, digests)])

    def end(self, kind: str, method: str, output: Flat) -> None:
        matches = self._open.pop()
        if matches and not traced(output):
            outputs = {name: np.asarray(value) for name, value in output.arrays}
            for match in matches:
                self._run.take(match, outputs)


def _receives(match: Match, given: Flat, digests: Mapping[str, bytes]) -> bool:
    """True if a call with these arguments is the matched one on the reference's inputs."""
    forced = by_port_leaf(match.inputs)
    buffers = {name: None if leaf.reading else leaf.ref.buffer for name, leaf in forced.items()}
    known = {name: buffer.digest for name, buffer in buffers.items() if buffer is not None}
    return match.port.arguments == given.skeleton and len(forced) == len(known) and known == digests


def _unknown(match: Match, problem: str) -> dict[Key, Error]:
    error = Error.unknown(problem)
    return {(match.ref.order, leaf.ref.name): error for leaf in match.outputs if comparable(leaf)}
