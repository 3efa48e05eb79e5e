"""Inclusive error: every module of the port is fed the reference's inputs for each of its calls.

A call that has no other inside it has been measured already: its inclusive error is its exclusive
one. From the root down, then, for the containers: while one runs on the reference's inputs, those
inside it are watched, and one that happens to receive the very inputs of the reference needs no run
of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Shaped

from parity.capture.hooks_nnx import Observer, observed
from parity.core.arrays import comparable
from parity.core.calls import LeafMatch, Match
from parity.core.measurements import Error
from parity.core.problems import not_measured
from parity.core.store import Store, digest
from parity.core.thread_pool import Background
from parity.core.tree import Flat, flatten
from parity.force.common import NotMeasured, Sides, by_port_leaf, reference, same, unforced, values
from parity.force.nnx import repeat, traced
from parity.host.progress import Progress
from parity.measure.exclusive import NOT_REPEATABLE, Exclusives
from parity.measure.free import Key
from parity.measure.noise import bounded, score

Array = Shaped[np.ndarray, "..."]
Limit = Callable[[str], float]

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

    The reference is run in float64 for a container whose own code fails by its exclusive error, to
    confirm that, and for one that is too far from the reference though nothing inside it fails.
    """
    found: dict[Key, Error] = {}
    containers = {match.parent for match in matches}
    waiting: list[Match] = []
    for match in matches:
        if match.ref.tapped or match.port.tapped:
            continue  # no call that could be made by itself
        alone = {} if match.ref.order in containers else _as_exclusive(match, exclusives)
        found |= alone
        if not alone:
            waiting.append(match)
    progress.stage("inclusive error", len(waiting))
    failing = exclusives.failing(matches, limit)
    # whether the code around a tap makes up for it is for what it returns to tell
    failing |= {match.parent for match in matches
                if match.ref.tapped and match.ref.order in failing}  # fmt: skip
    with Background() as background:
        run = _Run(
            _Waiting(waiting), sides, store, limit, failing, _around(matches, failing), background,
            progress, found,
        )  # fmt: skip
        for match in reversed(waiting):
            if match in run.waiting:
                run.measure(match)
    return found


def _as_exclusive(match: Match, exclusives: Exclusives) -> dict[Key, Error]:
    """The exclusive errors of a call without others inside, unless they could not be measured."""
    keys = [(match.ref.order, leaf.ref.name) for leaf in match.outputs if comparable(leaf)]
    errors = [exclusives.errors.get(key) for key in keys]
    if any(error is None or (error.problem and error.mae != error.mae) for error in errors):
        return {}
    return {key: error.of_subtree() for key, error in zip(keys, errors, strict=True) if error}


def _around(matches: Sequence[Match], failing: frozenset[int]) -> frozenset[int]:
    """The calls around those."""
    parents = {match.ref.order: match.parent for match in matches}
    found: set[int] = set()
    for order in failing:
        above = parents[order]
        while above != -1 and above not in found:
            found.add(above)
            above = parents[above]
    return frozenset(found)


class _Waiting:
    """The matches that have no inclusive error yet, by the port's path."""

    def __init__(self, matches: Iterable[Match]) -> None:
        self._by_path: dict[str, dict[int, Match]] = defaultdict(dict)
        for match in matches:
            self._by_path[match.port.path][match.ref.order] = match

    def __contains__(self, match: Match) -> bool:
        return match.ref.order in self._by_path[match.port.path]

    def remove(self, match: Match) -> None:
        del self._by_path[match.port.path][match.ref.order]

    def of(self, path: str) -> tuple[Match, ...]:
        return tuple(self._by_path[path].values())

    def paths(self) -> tuple[str, ...]:
        return tuple(path for path, found in self._by_path.items() if found)


@dataclass(frozen=True)
class _Run:
    """What the measurement of one call needs, and where it goes."""

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
        problem = unforced(match)
        exact = all(same(leaf) for leaf in by_port_leaf(match.inputs).values())
        if not problem and not exact and call.arguments is None:
            problem = NOT_REPEATABLE
        if problem:
            self.waiting.remove(match)
            self.found.update(_unknown(match, problem))
            self.progress.advance()
        elif exact:
            recorded = {leaf.name: self.store.get(leaf.buffer) for leaf in call.outputs
                        if leaf.buffer}  # fmt: skip
            self.settle(match, recorded)
        else:
            watched = {
                path: self.sides.nnx_modules[path]
                for path in self.waiting.paths()
                if path.startswith(f"{call.path}." if call.path else "") and path
            }
            with observed(watched, _Watcher(self)):
                method = self.sides.nnx_method if match.ref.parent == -1 else "__call__"
                module = self.sides.nnx_modules[call.path]
                output = flatten(repeat(module, method, call, values(match, self.store)))
            self.settle(match, {name: np.asarray(value) for name, value in output.arrays})

    def settle(self, match: Match, outputs: Mapping[str, Array]) -> None:
        """These are the outputs on the reference's inputs: measure them beside the run."""
        self.waiting.remove(match)
        self.background.submit(self._measure, match, outputs)

    def _measure(self, match: Match, outputs: Mapping[str, Array]) -> None:
        order, near = match.ref.order, SLACK * self.limit(match.ref.kind)
        found: dict[str, Error] = {}
        far: list[tuple[LeafMatch, Array, Array]] = []
        for leaf in match.outputs:
            if comparable(leaf) and leaf.port:
                ref, port = reference(leaf, self.store), outputs[leaf.port.name]
                error = found[leaf.ref.name] = score(ref, port)
                floats = ref.dtype.kind in "fcV" and not error.nonfinite and not error.problem
                close = bounded(error.rel_l2, near, ref.dtype) or order in self.explained
                if floats and error.mae == error.mae and (order in self.failing or not close):
                    far.append((leaf, ref, port))
                else:
                    found[leaf.ref.name] = replace(error, bounded=True)
        if far:
            wide: Mapping[str, Array] = {}
            problem = None
            try:
                wide = self.sides.reference.whole(match.ref, self.store)
            except NotMeasured as error:
                problem = not_measured(str(error))
            for leaf, ref, port in far:
                array = wide.get(leaf.ref.name)
                if array is not None and leaf.undo:
                    array = np.ascontiguousarray(np.moveaxis(array, -1, 1))
                error64 = score(ref, port, array).of_subtree()
                found[leaf.ref.name] = replace(error64, problem=error64.problem or problem)
        self.found.update({(order, name): error for name, error in found.items()})
        self.progress.advance()


class _Watcher(Observer):
    """Settles calls inside a repeated one that receive exactly what the reference's did."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self._open: list[list[Match]] = []

    def begin(self, path: str, given: Flat) -> None:
        waiting = self._run.waiting.of(path)
        if not waiting or traced(given):
            self._open.append([])
            return
        digests = {name: digest(np.asarray(array)) for name, array in given.arrays}
        self._open.append([m for m in waiting if _receives(m, given, digests)])

    def end(self, kind: str, method: str, output: Flat) -> None:
        matches = self._open.pop()
        if matches and not traced(output):
            outputs = {name: np.asarray(value) for name, value in output.arrays}
            for match in matches:
                self._run.settle(match, outputs)


def _receives(match: Match, given: Flat, digests: Mapping[str, bytes]) -> bool:
    """Whether a call with these arguments is the matched one, given the reference's inputs."""
    forced = by_port_leaf(match.inputs)
    return (
        match.port.arguments == given.skeleton
        and set(forced) == set(digests)
        and all(
            not leaf.undo
            and leaf.ref.buffer is not None
            and leaf.port is not None
            and leaf.port.buffer is not None
            and leaf.ref.buffer.digest == digests[name]
            for name, leaf in forced.items()
        )
    )


def _unknown(match: Match, problem: str) -> dict[Key, Error]:
    error = Error.unknown(problem)
    return {(match.ref.order, leaf.ref.name): error for leaf in match.outputs if comparable(leaf)}
