"""Inclusive error: every module of the port is fed the reference's inputs for each of its calls.

From the root down. While a container runs on the reference's inputs, the calls inside it are
watched: one that happens to receive the very inputs of the reference needs no run of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx
from jaxtyping import Shaped

from parity import capture_torch, noise
from parity.capture_nnx import Method, target
from parity.measure import Key, comparable, read
from parity.metrics import distance
from parity.observe_nnx import Observer, observed
from parity.progress import Progress
from parity.recorder import unbind
from parity.records import Call, Inclusive, LeafMatch, Match
from parity.store import Store, digest
from parity.tree import Flat, flatten, rebuild

Array = Shaped[np.ndarray, "..."]
Limit = Callable[[str], float] | None
"""The limit on R for a module kind, to decide where the float64 run is needed; `None`: always."""

SLACK = 4
"""How far above its limit R may be, at worst, where the float64 run is left out. PyTorch's own
error may be several roundings (its 3-D convolution reaches 1.5e-6 on AVX2), and then a correct port
is that far from it too; no known mistake has R < 297."""

NOT_REPEATABLE = "not measured: its arguments hold a module or random streams under jit"


@dataclass(frozen=True)
class Sides:
    """Both models, modules by path, and what was called on their roots."""

    torch_modules: Mapping[str, torch.nn.Module]
    nnx_modules: Mapping[str, nnx.Module]
    torch_method: capture_torch.Method
    nnx_method: Method


def measure_inclusive(
    matches: Sequence[Match], sides: Sides, store: Store, limit: Limit, progress: Progress
) -> Mapping[Key, Inclusive]:
    """Run each matched call of the port on the reference's inputs and measure its outputs.

    Calls are repeated eagerly: an operation of one shape is compiled once, whatever module makes
    it. A call that received the reference's inputs already is not repeated. Where the relative
    error does not bound R under `SLACK` times the `limit` of the module's kind, the reference is
    run in float64 to measure it.
    """
    progress.stage("inclusive error", len(matches))
    found: dict[Key, Inclusive] = {}
    waiting = _Waiting(matches)

    def settle(match: Match, outputs: Mapping[str, Array]) -> None:
        found.update(_errors(match, outputs, sides, store, limit))
        waiting.remove(match)
        progress.advance()

    for match in reversed(matches):
        if match not in waiting:
            continue
        call, forced = match.port, _forced(match)
        unforced = _unforced(match)
        if unforced:
            found.update(_unknown(match, unforced))
            waiting.remove(match)
            progress.advance()
        elif all(_same(leaf) for leaf in forced.values()):
            settle(
                match, {leaf.name: store.get(leaf.buffer) for leaf in call.outputs if leaf.buffer}
            )
        elif call.arguments is None:
            found.update(_unknown(match, NOT_REPEATABLE))
            waiting.remove(match)
            progress.advance()
        else:
            watched = {
                path: sides.nnx_modules[path]
                for path in waiting.paths()
                if path.startswith(f"{call.path}." if call.path else "")
            }
            watcher = _Watcher(waiting, settle)
            with observed(watched, watcher), jax.disable_jit():
                method = sides.nnx_method if match.ref.parent == -1 else "__call__"
                module = sides.nnx_modules[call.path]
                outputs = repeat(module, method, call, _values(match, store))
            settle(match, {name: np.asarray(value) for name, value in outputs.items()})
    return found


def repeat(
    module: nnx.Module, method: Method, call: Call, values: Sequence[Array]
) -> Mapping[str, Any]:
    """Make a recorded call again, with `values` for its arrays; outputs by leaf name."""
    assert call.arguments is not None
    function = target(module, method)
    arrays = [jax.numpy.asarray(value) for value in values]
    args, kwargs = unbind(function, rebuild(call.arguments, arrays))
    return dict(flatten(function(*args, **kwargs)).arrays)


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


class _Watcher(Observer):
    """Settles calls inside a repeated one that receive exactly what the reference's did."""

    def __init__(
        self, waiting: _Waiting, settle: Callable[[Match, Mapping[str, Array]], None]
    ) -> None:
        super().__init__()
        self._waiting, self._settle = waiting, settle
        self._open: list[list[Match]] = []

    def begin(self, path: str, given: Flat) -> None:
        waiting = self._waiting.of(path)
        if not waiting or _traced(given):
            self._open.append([])
            return
        digests = {name: digest(np.asarray(array)) for name, array in given.arrays}
        self._open.append([m for m in waiting if _receives(m, given, digests)])

    def end(self, kind: str, method: str, output: Flat) -> None:
        matches = self._open.pop()
        if matches and not _traced(output):
            outputs = {name: np.asarray(value) for name, value in output.arrays}
            for match in matches:
                self._settle(match, outputs)


def _receives(match: Match, given: Flat, digests: Mapping[str, bytes]) -> bool:
    """Whether a call with these arguments is the matched one, given the reference's inputs."""
    forced = _forced(match)
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


def _forced(match: Match) -> dict[str, LeafMatch]:
    """The port's arguments that are replaced by the reference's, by leaf name."""
    return {leaf.port.name: leaf for leaf in match.inputs if leaf.port and comparable(leaf)}


def _same(leaf: LeafMatch) -> bool:
    return not leaf.undo and leaf.port is not None and leaf.ref.buffer == leaf.port.buffer


def _values(match: Match, store: Store) -> list[Array]:
    """Arrays for the call: the reference's where it has them, else the port's own."""
    forced, values = _forced(match), []
    for leaf in match.port.inputs:
        if leaf.buffer is not None:
            paired = forced.get(leaf.name)
            ref = paired.ref.buffer if paired is not None else None
            undo = paired is not None and paired.undo
            values.append(read(store, ref, undo) if ref is not None else store.get(leaf.buffer))
    return values


def _traced(flat: Flat) -> bool:
    return any(isinstance(value, jax.core.Tracer) for _, value in flat.arrays)


def _unforced(match: Match) -> str:
    """Why the call cannot be given the reference's inputs, if it cannot."""
    problem = next((leaf.problem for leaf in match.inputs if leaf.problem), "")
    if problem:
        return f"not measured: an input has {problem}"
    both = all(any(leaf.buffer for leaf in call.inputs) for call in (match.ref, match.port))
    return "not measured: no input has a counterpart" if both and not match.inputs else ""


def _unknown(match: Match, problem: str) -> dict[Key, Inclusive]:
    nan = float("nan")
    unknown = Inclusive(nan, nan, 0, problem=problem)
    return {(match.ref.order, leaf.ref.name): unknown for leaf in match.outputs if comparable(leaf)}


def _errors(
    match: Match, outputs: Mapping[str, Array], sides: Sides, store: Store, limit: Limit
) -> dict[Key, Inclusive]:
    """Distances of these outputs from the reference's, and R where it is needed."""
    errors: dict[str, Inclusive] = {}
    open_leaves: list[tuple[LeafMatch, Array, Array]] = []
    for leaf in match.outputs:
        buffers = comparable(leaf)
        if buffers is None or leaf.port is None:
            continue
        ref, port = read(store, buffers[0], leaf.undo), outputs[leaf.port.name]
        if ref.shape != port.shape:
            inf, problem = float("inf"), f"shape {port.shape} instead of {ref.shape}"
            errors[leaf.ref.name] = Inclusive(inf, inf, 0, problem=problem)
            continue
        error = errors[leaf.ref.name] = Inclusive(*distance(ref, port))
        if _undecided(error, ref, match.ref.kind, limit):
            open_leaves.append((leaf, ref, port))
        else:
            errors[leaf.ref.name] = replace(error, bounded=True)
    if open_leaves:
        module = sides.torch_modules[match.ref.path]
        method = sides.torch_method if match.ref.parent == -1 else "__call__"
        wide = noise.reference64(module, method, match.ref, store)
        for leaf, ref, port in open_leaves:
            if leaf.ref.name in wide and wide[leaf.ref.name].size == ref.size:
                ref64 = wide[leaf.ref.name]
                ref64 = np.ascontiguousarray(np.moveaxis(ref64, -1, 1)) if leaf.undo else ref64
                r, floor = noise.score(ref, port, ref64)
                error = errors[leaf.ref.name]
                errors[leaf.ref.name] = replace(error, r=r, floor_rel_l2=floor)
    return {(match.ref.order, name): error for name, error in errors.items()}


def _undecided(error: Inclusive, ref: Array, kind: str, limit: Limit) -> bool:
    if error.nonfinite or ref.dtype.kind not in "fcV" or np.isnan(error.mae):
        return False
    return limit is None or not noise.bounded(error.rel_l2, SLACK * limit(kind), ref.dtype)
