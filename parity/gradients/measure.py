"""Gradients of both sides, call by call.

What arrives at a call's outputs, and at the inputs of the calls inside it, is the reference's. So
the gradients of its inputs and tensors, and what it hands back to the calls inside it, are the work
of its own backward code alone.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from parity.capture.linen import Part
from parity.core.arrays import read
from parity.core.calls import Call, Leaf, LeafMatch, Match
from parity.core.globs import path_name
from parity.core.measurements import UNSTEADY, Error
from parity.core.metrics import distance, rms
from parity.core.store import Buffer, Store
from parity.core.tensors import Array, Transform, Weight
from parity.force.common import NotMeasured, Sides, reference, unforced
from parity.gradients.nnx import PortGradients, PortRun, differentiate_port
from parity.gradients.noise import Subject, is_strained, scored, small, strict, widened
from parity.gradients.protocol import (
    PLAIN,
    Asked,
    Backward,
    Gradients,
    Key,
    Side,
    Wide,
    WideGradients,
    differentiable,
    owner,
    paired,
)
from parity.host.progress import Progress
from parity.judge.verdict import fail_limit
from parity.measure.noise import of_sum
from parity.weights.weight_map import in_order_of_ref

SHAKES = 4
"""How often numbers are shaken to see whether a gradient jumps: to either side, twice."""

SHAKEN = 16.0
"""By how many roundings: more than what lies between numbers and a kink, by which another order of
summation may take the other side."""

RANDOM = "not measured: PyTorch is far from its own float64 run: random, or in train mode?"
NOT_PAIRED = "not measured: no leaf of the port is known to hold it"


def measure_gradients(
    matches: Sequence[Match],
    calls: tuple[Sequence[Call], Sequence[Call]],
    sides: Sides,
    backward: Backward,
    weights: Sequence[Weight],
    store: Store,
    progress: Progress,
) -> "Measured":
    """Run both sides backward.

    `calls` are all that the reference and the port made. Calls of Linen modules, and those under a
    JAX transformation, count with the call around them.
    """
    linen = {m.ref.order for m in matches if isinstance(sides.nnx_modules[m.port.path], Part)}
    matches = _without(matches, linen)
    found = Measured(matches, calls, backward, weights, store)
    try:
        progress.stage("gradients: the reference")
        found.recorded = backward.record(matches, calls[0], store)
        progress.stage("gradients: the port on the reference's inputs")
        found.run = differentiate_port(
            sides.nnx_modules, sides.nnx_method, matches, calls[1], store, found.recorded
        )
        found.matches = _without(matches, found.run.hidden)
        progress.stage("gradients: the reference in float64")
        found.wide = backward.own(found.matches, calls[0], store, found.recorded)
        found.look_closer(progress)
        found.shake(progress)
    except NotMeasured as error:
        found.problem = str(error)
    return found


Jumps = dict[Key | tuple[int, str] | str, Buffer]
"""How far a few roundings move each entry of a gradient."""


def _without(matches: Sequence[Match], orders: Collection[int]) -> Sequence[Match]:
    """The others, each in the nearest that is left."""
    above = {match.ref.order: match.parent for match in matches}

    def parent(order: int) -> int:
        while order in orders:
            order = above[order]
        return order

    return [replace(m, parent=parent(m.parent)) for m in matches if m.ref.order not in orders]


class Measured:
    """What the runs gave; `problem` says why there is no more of it."""

    def __init__(
        self,
        matches: Sequence[Match],
        calls: tuple[Sequence[Call], Sequence[Call]],
        backward: Backward,
        weights: Sequence[Weight],
        store: Store,
    ) -> None:
        self.matches, self.store, self.problem = matches, store, ""
        self.recorded, self.run = Gradients({}, {}), PortRun()
        self.wide = WideGradients({}, {})
        self._jumps: Jumps = {}
        self._calls, self._backward, self._weights = calls, backward, weights
        self._kinds = {match.ref.order: match.ref.kind for match in matches}

    def look_closer(self, progress: Progress) -> None:
        """Where something is near its limit, count roundings inside the reference's code too."""
        if any(one.strained for one in self._subjects()):
            progress.stage("gradients: what roundings come to")
            with suppress(NotMeasured):  # what is known without it stands
                self.wide = self._own(Asked(inside=True))

    def _subjects(self) -> Iterator[Subject]:
        return chain(
            self.tensors(),
            (one for m in self.matches for one in self.inputs(m)),
            (one for m in self.matches for one in self.handed(m)),
        )

    def _own(self, asked: Asked) -> WideGradients:
        return self._backward.own(self.matches, self._calls[0], self.store, self.recorded, asked)

    def shake(self, progress: Progress) -> None:
        """Where a small error fails, see how far float64 itself is moved by a few roundings.

        A mask, a maximum or a clamp of what is computed inside a call takes the other side when
        that is near enough to it: gradients jump then, on either side.
        """
        if any(one.doubtful for one in self._subjects()):
            progress.stage("gradients: what roundings do to them")
            for number in range(1, SHAKES + 1):
                _widest(self._jumps, self.wide, self._own(Asked(number, SHAKEN)), self.store)

    def inputs(self, match: Match) -> Iterator[Subject]:
        """The gradient of each input of a call."""
        order = match.ref.order
        own, whole = self.run.own.get(order), self.run.whole.get(order)
        for leaf in paired(match.inputs):
            wide, terms, jump = self._wide(self.wide, self._jumps, match, "input", leaf)
            inside = self._input(whole, leaf)
            port = self._input(own, leaf)
            yield Subject(
                match, leaf.ref.name, self._ref(match, "input", leaf), port, wide, terms,
                jump, fail_limit(match.ref.kind), whole=inside,
                free=None if match.ref.parent != -1 else port if inside is None else inside,
                given=reference(leaf, self.store),
                problem=self.why(match),
            )  # fmt: skip

    def handed(self, match: Match) -> Iterator[Subject]:
        """What the call around one hands back to each of its outputs."""
        own = self.run.own.get(match.parent)
        if own is None or self.problem:
            return
        for leaf in paired(match.outputs):
            assert leaf.port is not None
            buffer = own.handed.get((match.ref.order, leaf.port.name))
            port = None if buffer is None else self.store.get(buffer)
            wide, terms, jump = self._wide(self.wide, self._jumps, match, "output", leaf)
            ref = self._ref(match, "output", leaf)
            limit = fail_limit(self._kinds[match.parent])
            yield Subject(match, leaf.ref.name, ref, port, wide, terms, jump, limit)

    def goes_to(self, match: Match, name: str) -> Sequence[int]:
        """The calls that an output goes on to, by `order`; that of the call around if returned."""
        return self.wide.flows.get((match.ref.order, "output", name), ())

    def tensors(self) -> Iterator[Subject]:
        """The gradient of each parameter, summed over all calls; it counts with the first call of
        its module, or of the nearest one around that.
        """
        first = {match.ref.path: match for match in reversed(self.matches)}
        root = self.matches[-1].ref.order
        alone = self.run.whole.get(root) or self.run.own.get(root)
        free = alone.tensors if alone is not None else {}
        for name, lines in self._lines.items():
            path = owner(lines[0].name, first)
            buffer, port = self.recorded.tensors.get(name), self._in_order(lines, self.run.tensors)
            idle = buffer is None and path != lines[0].path and (port is None or not port.any())
            if path not in first or idle:
                continue
            ref = np.zeros(lines[0].shape, np.float32) if buffer is None else self.store.get(buffer)
            calls = [match for match in self.matches if match.ref.path == path]
            one = self.wide.tensors.get(name)
            own = [self.why(match) for match in calls]
            wide = None if one is None else self.store.get(one.value)
            total = ref
            users = self._users(name, lines, path)
            if users and wide is not None:
                # of a share the reference's gradient is known in float64 alone
                yield from users
                wide = wide - sum(user.wide for user in users if user.wide is not None)
                ref, port = wide.astype(ref.dtype), self._share(calls, lines)
            yield Subject(
                first[path], name.removeprefix(f"{path}."), ref, _as(port, ref), wide,
                0.0 if one is None else of_sum(one.spread, _positions(calls)),
                _of(self._jumps, name, self.store), fail_limit(first[path].ref.kind),
                whole=None if users else _as(self._in_order(lines, self._whole(calls, lines)), ref),
                free=_as(self._in_order(lines, self._read(free, lines)), ref), total=total,
                problem=next(filter(None, own), "" if port is not None else NOT_PAIRED),
            )  # fmt: skip

    def _users(self, name: str, lines: Sequence[Weight], path: str) -> list[Subject]:
        """The share in a parameter of each module that is not its owner, with that module's first
        call: a weight that is tied, or that the code of another module reads.
        """
        found = []
        for user in dict.fromkeys(match.ref.path for match in self.matches):
            calls = [match for match in self.matches if match.ref.path == user]
            shares = [self.wide.users.get((match.ref.order, name)) for match in calls]
            theirs = [one for one in shares if one is not None]
            port = self._share(calls, lines) if user != path else None
            if user == path or not (theirs or (port is not None and port.any())):
                continue
            wide = np.zeros(lines[0].shape)
            jump = np.zeros(lines[0].shape)
            for match, one in zip(calls, shares, strict=True):
                if one is not None:
                    wide = wide + self.store.get(one.value)
                    own = _of(self._jumps, (match.ref.order, name), self.store)
                    jump = jump if own is None else jump + own
            ref = wide.astype(np.complex64 if wide.dtype.kind == "c" else np.float32)
            found.append(Subject(
                calls[0], name, ref, _as(port, ref), wide,
                of_sum(sum(one.spread for one in theirs), _positions(calls)),
                jump, fail_limit(calls[0].ref.kind),
                problem=next(filter(None, map(self.why, calls)), ""),
            ))  # fmt: skip
        return found

    def _share(self, calls: Sequence[Match], lines: Sequence[Weight]) -> Array | None:
        """What the own code of these calls of the port makes of a parameter's gradient."""
        total: dict[str, Array] = {}
        for match in calls:
            one = self.run.own.get(match.ref.order)
            for name, array in self._read(one.tensors, lines).items() if one else ():
                total[name] = total.get(name, 0) + array.astype(np.float64)
        return self._in_order([line for line in lines if line.nnx_name in total], total)

    def inside(self, match: Match) -> tuple[Error, float]:
        """The worst of all gradients of a call, of all that is inside it too; and the largest
        relative error that is more than rounding where nothing jumps.
        """
        jumps, far = Jumps(), 0.0
        try:
            whole = self._whole_call(match)
            worst, far = self._worst(match, whole, jumps)
            if worst.problem or is_strained(worst, fail_limit(match.ref.kind)):
                with suppress(NotMeasured):
                    whole = self._whole_call(match, Asked(inside=True))
                    worst, far = self._worst(match, whole, jumps)
            if small(worst, fail_limit(match.ref.kind)):
                for number in range(1, SHAKES + 1):
                    again = self._whole_call(match, Asked(number, SHAKEN))
                    _widest(jumps, whole, again, self.store)
                worst, _ = self._worst(match, whole, jumps)
        except NotMeasured as error:
            return Error.unknown(str(error)), far
        return worst, far

    def _whole_call(self, match: Match, asked: Asked = PLAIN) -> WideGradients:
        return self._backward.whole(match, self._calls[0], self.store, self.recorded, asked)

    def _worst(self, match: Match, whole: WideGradients, jumps: Jumps) -> tuple[Error, float]:
        errors, far = list[Error](), 0.0

        def add(
            ref: Array, own: Array, wide: Array | None, terms: float, jump: Array | None
        ) -> None:
            nonlocal far
            error = scored(ref, own, wide, terms)
            if strict(error, ref) > fail_limit(match.ref.kind):
                far = max(far, error.rel_l2)
            size = 0.0 if jump is None else rms(jump)
            errors.append(widened(ref, own, wide, terms, size) if size else error)

        port = self.run.whole[match.ref.order]
        for leaf in paired(match.inputs):
            own = self._input(port, leaf)
            wide, terms, jump = self._wide(whole, jumps, match, "input", leaf)
            if own is not None:
                add(self._ref(match, "input", leaf), own, wide, terms, jump)
        for name, lines in self._lines.items():
            own = self._in_order(lines, self._read(port.tensors, lines))
            one = whole.tensors.get(name)
            if own is None or one is None:
                continue
            if self._unsteady(name):
                return Error.unknown(RANDOM), far
            # of one call the reference's gradient is known in float64 alone
            wide = self.store.get(one.value)
            terms, jump = of_sum(one.spread, _positions([match])), _of(jumps, name, self.store)
            add(wide.astype(np.float32), own.astype(np.float32), wide, terms, jump)
        if any(error.unsteady for error in errors):
            return Error.unknown(RANDOM), far
        none = Error(math.nan, math.nan, 0)
        return max(errors, key=lambda e: (e.nonfinite, e.r), default=none), far

    def _unsteady(self, name: str) -> bool:
        """Whether the reference's own gradient of a parameter is not what it is in float64."""
        ref, one = self.recorded.tensors.get(name), self.wide.tensors.get(name)
        if ref is None or one is None:
            return False
        array, wide = self.store.get(ref), self.store.get(one.value)
        return scored(array, array, wide, one.spread).floor_rel_l2 > UNSTEADY

    def forward(self, match: Match) -> float:
        """How far what the call returns by itself is from what the reference's does, relatively."""
        found = [0.0]
        for leaf in paired(match.outputs):
            assert leaf.port is not None
            buffer = self.run.outputs.get((match.ref.order, leaf.port.name))
            if buffer is not None and buffer.shape == reference(leaf, self.store).shape:
                found.append(distance(reference(leaf, self.store), self.store.get(buffer))[1])
        return max(found)

    def why(self, match: Match) -> str:
        """Why a call has no gradients to compare, `""` if it has."""
        order = match.ref.order
        return (
            self.problem
            or unforced(match)
            or self.run.problems.get(order, "")
            or self._lost.get(order, "")
        )

    @cached_property
    def _lost(self) -> Mapping[int, str]:
        """Calls with a gradient that only one side can have, by `order`."""
        found: dict[int, str] = {}
        for match in self.matches:
            order, where = match.ref.order, path_name(match.ref.path)
            ours = {leaf.port.name for leaf in paired(match.outputs) if leaf.port}
            sides: tuple[tuple[Side, int, Sequence[LeafMatch], Sequence[Leaf]], ...] = (
                ("output", order, match.outputs, match.ref.outputs),
                ("input", match.parent, match.inputs, match.ref.inputs),
            )
            for side, blamed, leaves, theirs in sides:
                both = {leaf.ref.name for leaf in paired(leaves)}
                for one in theirs:
                    arrives = self.recorded.leaves.get((order, side, one.name))
                    if differentiable(one) and one.name not in both and self._any(arrives):
                        text = f"the port has no {side} {one.name!r} of `{where}`"
                        found[blamed] = f"not measured: {text}, where a gradient arrives"
            back = self.run.own.get(match.parent)
            for (child, name), buffer in back.handed.items() if back else ():
                if child == order and name not in ours and self._any(buffer):
                    found[order] = f"not measured: the reference has no output {name!r}"
        return found

    def _any(self, buffer: Buffer | None) -> bool:
        return buffer is not None and bool(np.any(self.store.get(buffer)))

    def _ref(self, match: Match, side: Side, leaf: LeafMatch) -> Array:
        buffer = self.recorded.leaves.get((match.ref.order, side, leaf.ref.name))
        value = reference(leaf, self.store)
        return np.zeros_like(value) if buffer is None else read(self.store, buffer, leaf.undo)

    def _wide(
        self,
        gradients: WideGradients,
        jumps: Jumps,
        match: Match,
        side: Side,
        leaf: LeafMatch,
    ) -> tuple[Array | None, float, Array | None]:
        key: Key = (match.ref.order, side, leaf.ref.name)
        one = gradients.leaves.get(key)
        if one is None:
            return None, 0.0, None
        jump = None if key not in jumps else read(self.store, jumps[key], leaf.undo)
        return read(self.store, one.value, leaf.undo), one.spread, jump

    def _input(self, gradients: PortGradients | None, leaf: LeafMatch) -> Array | None:
        if gradients is None or leaf.port is None or leaf.port.name not in gradients.inputs:
            return None
        return self.store.get(gradients.inputs[leaf.port.name])

    @cached_property
    def _lines(self) -> Mapping[str, Sequence[Weight]]:
        """The lines of each parameter: of each part of it, and of each leaf that holds it."""
        found: dict[str, dict[tuple[str, str | Transform], Weight]] = {}
        for line in self._weights:
            if line.paired and line.kind == "parameter":
                name = self.recorded.shared.get(line.name, line.name)
                own = self.run.aliases.get(line.nnx_name, line.nnx_name)
                one = replace(line, nnx_name=own)
                found.setdefault(name, {}).setdefault((own, line.transform), one)
        return {name: list(lines.values()) for name, lines in found.items()}

    def _read(self, tensors: Mapping[str, Buffer], lines: Sequence[Weight]) -> Mapping[str, Array]:
        names = {line.nnx_name for line in lines} & tensors.keys()
        return {name: self.store.get(tensors[name]) for name in names}

    def _whole(self, calls: Sequence[Match], lines: Sequence[Weight]) -> Mapping[str, Array]:
        """Gradients of leaves of the port, with all that is inside these calls."""
        found: dict[str, Array] = {}
        for match in calls:
            one = self.run.whole.get(match.ref.order)
            for name, array in self._read(one.tensors, lines).items() if one else ():
                found[name] = found.get(name, 0) + array.astype(np.float64)
        return found

    def _in_order(self, lines: Sequence[Weight], tensors: Mapping[str, Array]) -> Array | None:
        """What the port has for a parameter of the reference, in its order of axes."""
        if not lines:
            return None
        total = np.zeros(lines[0].shape)
        for line in lines:
            own = tensors.get(line.nnx_name)
            found = None if own is None else in_order_of_ref(line, own)
            if found is None:
                return None
            total[found[1]] += found[0]
        return total


def _widest(jumps: Jumps, wide: WideGradients, again: WideGradients, store: Store) -> None:
    """How far each entry of a gradient is from what it was, at most."""
    sides: tuple[tuple[Mapping[Any, Wide], Mapping[Any, Wide]], ...] = (
        (wide.leaves, again.leaves), (wide.tensors, again.tensors), (wide.users, again.users)
    )  # fmt: skip
    for before, after in sides:
        for key, one in before.items():
            if key in after:
                gap = np.abs(store.get(after[key].value) - store.get(one.value))
                if key in jumps:
                    gap = np.maximum(gap, store.get(jumps[key]))
                jumps[key] = store.put(gap)


def _of(jumps: Jumps, name: tuple[int, str] | str, store: Store) -> Array | None:
    return store.get(jumps[name]) if name in jumps else None


def _positions(calls: Sequence[Match]) -> int:
    """How many terms the gradient of a parameter is summed from: one for each position of what the
    calls return, over all their channels.
    """
    shapes = [leaf.buffer.shape for match in calls for leaf in match.ref.outputs if leaf.buffer]
    return max(1, sum(math.prod(shape[:-1]) for shape in shapes))


def _as(array: Array | None, like: Array) -> Array | None:
    """In the type of another; `None` for a complex array where that is none."""
    if array is None or (array.dtype.kind == "c" and like.dtype.kind != "c"):
        return None
    return array.astype(like.dtype)
