"""The gradients of each call on both sides, named and paired."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from parity.core.arrays import Array, read
from parity.core.calls import LeafMatch, Match, Reading
from parity.core.measurements import UNSTEADY
from parity.core.store import Buffer
from parity.core.tensors import Weight
from parity.force.common import reference
from parity.gradients.float64 import Float64, Noise
from parity.gradients.noise import RANDOM, Subject, scored
from parity.gradients.protocol import Key, Side, owner, paired, total
from parity.gradients.runs import Runs
from parity.judge.verdict import fail_limit
from parity.measure.noise import of_sum
from parity.weights.weight_map import in_order_of_ref

NOT_PAIRED = "not measured: no leaf of the port is known to hold it"


class Subjects:
    """The gradients of some runs, one `Subject` for each of a call."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._store = runs, runs.recording.store
        self._kinds = {match.ref.order: match.ref.kind for match in runs.recording.matches}

    def __iter__(self) -> Iterator[Subject]:
        yield from self.tensors()
        for match in self._runs.recording.matches:
            yield from self.inputs(match)
            yield from self.passed_back(match)

    @cached_property
    def _by_path(self) -> Mapping[str, Sequence[Match]]:
        found: dict[str, list[Match]] = {}
        for match in self._runs.recording.matches:
            found.setdefault(match.ref.path, []).append(match)
        return found

    def inputs(self, match: Match) -> Iterator[Subject]:
        """The gradient of each input of a call."""
        for leaf in paired(match.inputs):
            local = self._of_leaf(match, "input", leaf, self._runs.port.local)
            key: Key = (match.ref.order, "input", leaf.port.name if leaf.port else "")
            whole = self._array(self._runs.port.whole.get(key))
            alone = local.port if whole is None else whole
            yield replace(
                local,
                whole=whole,
                free=alone if match.ref.parent == -1 else None,
                given=reference(leaf, self._store),
                problem=self._runs.why(match),
            )

    def passed_back(self, match: Match) -> Iterator[Subject]:
        """The gradient that the parent of a call passes back to each of its outputs."""
        if match.parent not in self._runs.port.done or self._runs.problem:
            return
        for leaf in paired(match.outputs):
            subject = self._of_leaf(match, "output", leaf, self._runs.port.local)
            yield replace(subject, limit=fail_limit(self._kinds[match.parent]))

    def _of_leaf(
        self,
        match: Match,
        side: Side,
        leaf: LeafMatch,
        gradients: Mapping[Key, Buffer],
        float64: Float64 | None = None,
    ) -> Subject:
        """The gradient at an input or output of a call, with the port's in `gradients`."""
        assert leaf.port is not None
        order, name = match.ref.order, leaf.ref.name
        ref = self._array(self._runs.recorded.of.get((order, side, name)), leaf.reading)
        if ref is None:
            ref = np.zeros_like(reference(leaf, self._store))
        port = self._array(gradients.get((order, side, leaf.port.name)))
        noise = (float64 or self._runs.float64).get((order, side, name), leaf.reading)
        return Subject(match, name, ref, port, *noise, fail_limit(match.ref.kind))

    def subtree(self, match: Match, float64: Float64) -> Iterator[Subject]:
        """The gradients of a call with all that is inside it."""
        whole = self._runs.port.whole
        for leaf in paired(match.inputs):
            subject = self._of_leaf(match, "input", leaf, whole, float64)
            if subject.port is not None:
                yield subject
        for name, lines in self._lines.items():
            port = self._port_tensor(whole, [match], lines)
            wide, spread, jump = float64.get(total(name))
            if port is None or wide is None:
                continue
            # of one call the reference's gradient is known in float64 alone
            why = RANDOM if self._unsteady(total(name)) else ""
            yield _of_sum([match], name, _narrow(wide), port, (wide, spread, jump), problem=why)

    def _unsteady(self, key: Key) -> bool:
        """True if the reference's own gradient is not what it is in float64."""
        ref = self._array(self._runs.recorded.of.get(key))
        wide, spread, _ = self._runs.float64.get(key)
        if ref is None or wide is None:
            return False
        return scored(ref, ref, wide, spread).floor_rel_l2 > UNSTEADY

    def tensors(self) -> Iterator[Subject]:
        """The gradient of each parameter, summed over all calls; it counts with the first call of
        its module, or of the nearest one around that.
        """
        local, matches = self._runs.port.local, self._runs.recording.matches
        for name, lines in self._lines.items():
            path = owner(lines[0].name, self._by_path)
            recorded = self._array(self._runs.recorded.of.get(total(name)))
            port = self._port_tensor(local, matches, lines)
            idle = recorded is None and path != lines[0].path and (port is None or not port.any())
            if path in self._by_path and not idle:
                ref = np.zeros(lines[0].shape, np.float32) if recorded is None else recorded
                yield from self._of_tensor(name, path, ref, port)

    def _of_tensor(self, name: str, path: str, ref: Array, port: Array | None) -> Iterator[Subject]:
        """A parameter's gradient in the calls of `path`, and its shares in other modules."""
        lines, calls, runs, summed = self._lines[name], self._by_path[path], self._runs, ref
        wide, spread, jump = runs.float64.get(total(name))
        users = list(self._users(name, path)) if wide is not None else []
        if users and wide is not None:
            # of a share the reference's gradient is known in float64 alone
            yield from users
            wide = wide - sum(user.wide for user in users if user.wide is not None)
            ref = wide.astype(ref.dtype)
            port = self._port_tensor(runs.port.local, calls, lines, partial=True)
        whole = None if users else self._port_tensor(runs.port.whole, calls, lines)
        root = runs.recording.root
        contains = root.ref.order in runs.port.containers
        free = self._port_tensor(runs.port.whole if contains else runs.port.local, [root], lines)
        why = self._why(calls) or ("" if port is not None else NOT_PAIRED)
        own = name.removeprefix(f"{path}.")
        subject = _of_sum(calls, own, ref, port, (wide, spread, jump), problem=why)
        yield replace(subject, whole=_as(whole, ref), free=_as(free, ref), total=summed)

    def _users(self, name: str, path: str) -> Iterator[Subject]:
        """The share in a parameter of each module that is not its owner, with that module's first
        call: a weight that is tied, or that the code of another module reads.
        """
        lines, float64 = self._lines[name], self._runs.float64
        for user, calls in self._by_path.items():
            shares = [float64.get((match.ref.order, "tensor", name)) for match in calls]
            values = [value for value, _, _ in shares if value is not None]
            port = self._port_tensor(self._runs.port.local, calls, lines, partial=True)
            if user == path or not (values or (port is not None and port.any())):
                continue
            nothing = np.zeros(lines[0].shape)
            wide = sum(values, nothing)
            spread = sum(spread for _, spread, _ in shares)
            jump = sum((jump for _, _, jump in shares if jump is not None), nothing)
            noise = (wide, spread, jump)
            yield _of_sum(calls, name, _narrow(wide), port, noise, problem=self._why(calls))

    def _why(self, calls: Sequence[Match]) -> str:
        return next(filter(None, map(self._runs.why, calls)), "")

    def _array(self, buffer: Buffer | None, reading: Reading | None = None) -> Array | None:
        return None if buffer is None else read(self._store, buffer, reading)

    def _port_tensor(
        self,
        gradients: Mapping[Key, Buffer],
        calls: Sequence[Match],
        lines: Sequence[Weight],
        *,
        partial: bool = False,
    ) -> Array | None:
        """The sum of the port's gradients of a parameter over calls, in the reference's order of
        axes; `None` if a leaf that holds a part of it has none, or all with `partial`.
        """
        sums: dict[str, Array] = {}
        for name in dict.fromkeys(line.nnx_name for line in lines):
            for match in calls:
                buffer = gradients.get((match.ref.order, "tensor", name))
                if buffer is not None:
                    sums[name] = sums.get(name, 0) + _widened(self._store.get(buffer))
        if partial:
            lines = [line for line in lines if line.nnx_name in sums]
        if not lines or not all(line.nnx_name in sums for line in lines):
            return None
        result = np.zeros(lines[0].shape, np.result_type(*sums.values()))
        for line in lines:
            found = in_order_of_ref(line, sums[line.nnx_name])
            if found is None:
                return None
            result[found[1]] += found[0]
        return result

    @cached_property
    def _lines(self) -> Mapping[str, Sequence[Weight]]:
        """The lines of each parameter: of each part of it, and of each leaf that holds it."""
        found: dict[str, dict[tuple[str, object], Weight]] = {}
        shared, aliases = self._runs.recorded.shared, self._runs.port.aliases
        for line in self._runs.weights:
            if line.paired and line.kind == "parameter":
                own = aliases.get(line.nnx_name, line.nnx_name)
                leaves = found.setdefault(shared.get(line.name, line.name), {})
                leaves.setdefault((own, line.transform), replace(line, nnx_name=own))
        return {name: list(lines.values()) for name, lines in found.items()}


def _of_sum(
    calls: Sequence[Match], name: str, ref: Array, port: Array | None, noise: Noise, problem: str
) -> Subject:
    """The gradient of a parameter: a sum over each position of what the calls return."""
    shapes = [leaf.buffer.shape for match in calls for leaf in match.ref.outputs if leaf.buffer]
    positions = max(1, sum(math.prod(shape[:-1]) for shape in shapes))
    first, (wide, spread, jump) = calls[0], noise
    limit, terms = fail_limit(first.ref.kind), of_sum(spread, positions)
    return Subject(first, name, ref, _as(port, ref), wide, terms, jump, limit, problem=problem)


def _as(array: Array | None, like: Array) -> Array | None:
    """The array in the type of another; `None` for a complex one where that is none."""
    if array is None or (array.dtype.kind == "c" and like.dtype.kind != "c"):
        return None
    return array.astype(like.dtype)


def _narrow(wide: Array) -> Array:
    return wide.astype(np.complex64 if wide.dtype.kind == "c" else np.float32)


def _widened(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
