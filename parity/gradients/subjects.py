"""The gradients of each call on both sides, named and paired."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from parity.core.arrays import Array, read
from parity.core.calls import LeafMatch, Match, Reading
from parity.core.store import Buffer
from parity.core.tensors import Weight
from parity.force.common import Recording, reference, unforced
from parity.gradients.float64 import Float64
from parity.gradients.nnx import PortRun
from parity.gradients.noise import Subject
from parity.gradients.records import Gradients, Key, Side, owner, paired
from parity.judge.rows import RANDOM
from parity.weights.weight_map import in_order_of_ref

NOT_PAIRED = "not measured: no leaf of the port is known to hold it"


@dataclass(frozen=True)
class Subjects:
    """Gradients of the reference as it runs and in float64, and of the port, by call.

    `recording` holds the calls of the reference, `problem` says why there are no gradients.
    """

    recording: Recording
    weights: Sequence[Weight]
    float64: Float64
    recorded: Gradients = field(default_factory=Gradients)
    port: PortRun = field(default_factory=PortRun)
    problem: str = ""

    @property
    def matches(self) -> Sequence[Match]:
        """The calls that are compared."""
        return self.recording.matches

    @cached_property
    def _by_path(self) -> Mapping[str, Sequence[Match]]:
        found: dict[str, list[Match]] = {}
        for match in self.matches:
            found.setdefault(match.ref.path, []).append(match)
        return found

    def why(self, *calls: Match) -> str:
        """The reason why calls have no gradients to compare, `""` if they have."""
        random = [RANDOM.format(call.ref.random) for call in calls if call.ref.random]
        return self.problem or next(filter(None, (*random, *map(unforced, calls))), "")

    def inputs(self, match: Match) -> Iterator[Subject]:
        """The gradient of each input of a call."""
        for leaf in paired(match.inputs):
            subject = self._of_leaf(match, "input", leaf, match.ref.kind)
            free = self._free(match, leaf) if match.ref.parent == -1 else None
            yield replace(
                subject,
                free=None if free is None else (subject.ref, free),
                given=reference(leaf, self.recording.store),
                problem=self.why(match),
            )

    def passed_back(self, match: Match) -> Iterator[Subject]:
        """The gradient that the parent of a call passes back to each of its outputs."""
        parent = next((one for one in self.matches if one.ref.order == match.parent), None)
        if parent is not None and not self.why(parent):
            for leaf in paired(match.outputs):
                yield self._of_leaf(match, "output", leaf, parent.ref.kind)

    def _of_leaf(self, match: Match, side: Side, leaf: LeafMatch, kind: str) -> Subject:
        """The gradient at an input or output of a call."""
        assert leaf.port is not None
        order, name, float64 = match.ref.order, leaf.ref.name, self.float64
        key: Key = (order, side, name)
        ref = self._array(self.recorded.of.get(key), leaf.reading)
        if ref is None:
            ref = np.zeros_like(reference(leaf, self.recording.store))
        port = self._array(self.port.local.get((order, side, leaf.port.name)))
        wide = float64.get(key, leaf.reading)
        wide = np.zeros_like(_widened(ref)) if wide is None else wide
        return Subject(match, name, kind, ref, port, wide, lambda: float64.moved(key, leaf.reading))

    def subtree(self, match: Match) -> Iterator[tuple[Subject, Array | None]]:
        """The gradients of a call and of the parameters in it, and the port's as it runs."""
        for leaf, subject in zip(paired(match.inputs), self.inputs(match), strict=True):
            yield subject, self._free(match, leaf)
        below = f".{match.ref.path}.".replace("..", ".")
        inside = [m.ref.order for m in self.matches if f".{m.ref.path}.".startswith(below)]
        for name, lines in self._lines.items():
            # what is held elsewhere and used here is one of them
            used = any((order, "tensor", name) in self.recorded.of for order in inside)
            if used or f".{lines[0].name}".startswith(below):
                subject = self._share(name, self.matches)
                yield subject, self._free_tensor(name, subject.ref)

    def _free(self, match: Match, leaf: LeafMatch) -> Array | None:
        assert leaf.port is not None
        return self._array(self.port.free.get((match.ref.order, "input", leaf.port.name)))

    def _free_tensor(self, name: str, like: Array) -> Array | None:
        return _as(self._port_tensor(self.port.free, self.matches, self._lines[name]), like)

    def tensors(self) -> Iterator[Subject]:
        """The gradient of each parameter, summed over the calls of each module that uses it.

        It counts with the module that holds it, or the nearest around that is called. A further one
        has a share: its weight is tied, or its code reads that of another.
        """
        for name, lines in self._lines.items():
            path = owner(lines[0].name, self._by_path)
            for at, calls in self._by_path.items():
                share = self._share(name, calls)
                if at == lines[0].path or _any(share):
                    yield self._held(share, path) if at == path else share

    def _held(self, share: Subject, path: str) -> Subject:
        """The share of the module that holds a parameter, with all of it as both sides run."""
        whole = self._share(share.name, self.matches).ref
        free = self._free_tensor(share.name, whole)
        return replace(
            share,
            name=share.name.removeprefix(f"{path}."),
            free=None if free is None else (whole, free),
            problem=share.problem or ("" if share.port is not None else NOT_PAIRED),
        )

    def _share(self, name: str, calls: Sequence[Match]) -> Subject:
        """The part of a parameter's gradient that comes from some calls.

        It is a sum over each position of what the calls return.
        """
        lines, float64 = self._lines[name], self.float64
        keys: list[Key] = [(match.ref.order, "tensor", name) for match in calls]
        nothing = np.zeros(lines[0].shape)
        wide = sum((one for key in keys if (one := float64.get(key)) is not None), nothing)
        recorded = [buffer for key in keys if (buffer := self.recorded.of.get(key))]
        ref = sum((_widened(self.recording.store.get(buffer)) for buffer in recorded), nothing)
        ref = ref.astype(recorded[0].dtype if recorded else np.float32)
        used = [match for match, key in zip(calls, keys, strict=True) if key in self.recorded.of]
        shapes = [leaf.buffer.shape for m in used for leaf in m.ref.outputs if leaf.buffer]
        positions = max(1, sum(math.prod(shape[:-1]) for shape in shapes))

        def moved() -> Array:
            found = (float64.moved(key) for key in keys)
            return np.sqrt(sum((one**2 for one in found if one is not None), nothing))

        port = _as(self._port_tensor(self.port.local, calls, lines), ref)
        first, problem = calls[0], self.why(*calls)
        return Subject(
            first, name, first.ref.kind, ref, port, wide, moved, positions, problem=problem
        )

    def _array(self, buffer: Buffer | None, reading: Reading | None = None) -> Array | None:
        return None if buffer is None else read(self.recording.store, buffer, reading)

    def _port_tensor(
        self, gradients: Mapping[Key, Buffer], calls: Sequence[Match], lines: Sequence[Weight]
    ) -> Array | None:
        """The sum of the port's gradients of a parameter over calls, in the reference's order of
        axes; `None` if no leaf that holds a part of it has any.
        """
        sums: dict[str, Array] = {}
        for name in dict.fromkeys(line.nnx_name for line in lines):
            for match in calls:
                buffer = gradients.get((match.ref.order, "tensor", name))
                if buffer is not None:
                    sums[name] = sums.get(name, 0) + _widened(self.recording.store.get(buffer))
        if not sums:
            return None
        result = np.zeros(lines[0].shape, np.result_type(*sums.values()))
        for line in lines:
            if line.nnx_name in sums:
                found = in_order_of_ref(line, sums[line.nnx_name])
                if found is None:
                    return None
                result = found[1].put(result, found[1].of(result) + found[0])
        return result

    @cached_property
    def _lines(self) -> Mapping[str, Sequence[Weight]]:
        """The lines of each parameter: of each part of it, and of each leaf that holds it."""
        found: dict[str, dict[tuple[str, object], Weight]] = {}
        shared, aliases = self.recorded.shared, self.port.aliases
        for line in self.weights:
            if line.paired and line.kind == "parameter":
                own = aliases.get(line.nnx_name, line.nnx_name)
                leaves = found.setdefault(shared.get(line.name, line.name), {})
                leaves.setdefault((own, line.transform), replace(line, nnx_name=own))
        return {name: list(lines.values()) for name, lines in found.items()}


def _any(share: Subject) -> bool:
    """True if something of a gradient is in a share."""
    arrays = (share.wide, share.port)
    return any(array is not None and bool(array.any()) for array in arrays)


def _as(array: Array | None, like: Array) -> Array | None:
    """The array in the type of another; `None` for a complex one where that is none."""
    if array is None or (array.dtype.kind == "c" and like.dtype.kind != "c"):
        return None
    return array.astype(like.dtype)


def _widened(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
