"""Exclusive error: what each module's own code gets wrong, whatever goes on around or inside it.

Of a container, what it hands to the calls inside it counts too: these return the reference's
outputs, so a mistake before them does not show in what the container returns.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Shaped

from parity.background import Background
from parity.force_nnx import Forced, force_port
from parity.force_torch import Tensors, force_reference
from parity.forced import Sides, reference, same, unforced
from parity.measure import Key, comparable
from parity.noise import bounded, score, to_array
from parity.progress import Progress
from parity.records import Call, Exclusive, Handed, LeafMatch, Match
from parity.store import Store

Array = Shaped[np.ndarray, "..."]
Limit = Callable[[str], float]

SLACK = 4
"""How far above its limit R may be, at worst, where the float64 run is left out. PyTorch's own
error may be several roundings (its 3-D convolution reaches 1.5e-6 on AVX2), and then a correct port
is that far from it too; no known mistake has R < 297."""

NO_CALL = "not measured: the port did not make this call again on the reference's inputs"
OTHER_OUTPUT = "the port returned something else on the reference's inputs"


@dataclass(frozen=True)
class Exclusives:
    """Errors by call and output leaf; what containers handed on, by their `order`.

    `forced` is what each call received and returned in the port's run.
    """

    errors: Mapping[Key, Exclusive]
    handed: Mapping[int, tuple[Handed, ...]]
    forced: Mapping[int, Forced]

    def failing(self, matches: Sequence[Match], limit: Limit) -> frozenset[int]:
        """The calls whose own code is out of its limit, by what they return or hand on."""
        kinds = {match.ref.order: match.ref.kind for match in matches}
        bad = {order for (order, _), error in self.errors.items()
               if error.fails(limit(kinds[order]))}  # fmt: skip
        bad |= {order for order, found in self.handed.items()
                if any(x.error.fails(limit(kinds[order])) for x in found)}  # fmt: skip
        return frozenset(bad)


def measure_exclusive(
    matches: Sequence[Match],
    calls: tuple[Sequence[Call], Sequence[Call]],
    sides: Sides,
    store: Store,
    limit: Limit | None,
    progress: Progress,
) -> Exclusives:
    """Measure every call, in one run of each side.

    `calls` are all that the reference and the port made. With a `limit` on R by module kind, calls
    of the reference run in float64 only where the relative error of some leaf does not bound its R
    under `SLACK` times that limit; without, all do.
    """
    if not matches or matches[-1].ref.parent != -1:
        return Exclusives({}, {}, {})
    progress.stage("exclusive error: the port on the reference's inputs")
    forced = _forced(matches, calls[1], sides, store)
    work = _Work(matches, forced, store)
    wanted = work.without_float64(limit) if limit else {match.ref.order for match in matches}
    if not wanted:
        return work.result()
    progress.stage("exclusive error: the reference in float64", len(matches))
    with Background(threads=2) as background:

        def heard(match: Match, handed: Tensors, outputs: Tensors) -> None:
            work.submit(background, match, handed, outputs)
            progress.advance()

        root = matches[-1].ref
        problem = force_reference(
            sides.torch_modules[root.path], sides.torch_method, matches, calls[0], store, heard,
            wanted, prefix=root.path,
        )  # fmt: skip
    return work.result(problem)


def _forced(
    matches: Sequence[Match], calls: Sequence[Call], sides: Sides, store: Store
) -> Mapping[int, Forced]:
    if len(matches) == 1 and all(same(leaf) for leaf in matches[0].inputs if comparable(leaf)):
        port = matches[0].port  # alone, and given the reference's inputs: nothing to replace
        received, outputs = (
            {leaf.name: leaf.buffer for leaf in leaves if leaf.buffer}
            for leaves in (port.inputs, port.outputs)
        )
        return {matches[0].ref.order: Forced(received, outputs)}
    return force_port(sides.nnx_modules, sides.nnx_method, matches, calls, store)


@dataclass
class _Work:
    """What has been measured so far."""

    matches: Sequence[Match]
    forced: Mapping[int, Forced]
    store: Store
    errors: dict[Key, Exclusive] = field(default_factory=dict)
    handed: dict[Key, Handed] = field(default_factory=dict)

    @cached_property
    def _by_order(self) -> Mapping[int, Match]:
        return {match.ref.order: match for match in self.matches}

    @cached_property
    def _before(self) -> Mapping[int, str]:
        """The path of the call inside the same parent that came before each."""
        latest: dict[int, str] = {}
        found = {}
        for match in self.matches:
            found[match.ref.order] = latest.get(match.parent, "")
            latest[match.parent] = match.ref.path
        return found

    def without_float64(self, limit: Limit) -> set[int]:
        """Measure all without float64; returns the calls that need it to be judged.

        These are the calls whose R is not bounded by the relative error of an output, and those
        that handed something on otherwise than the reference.
        """
        wanted: set[int] = set()
        for match in self.matches:
            order = match.ref.order
            for leaf in self._measurable(match):
                ref, port = self._both(leaf, self.forced[order].outputs)
                error = score(ref, port)
                enough = SLACK * limit(match.ref.kind)
                near = error.mae == 0 or bounded(error.rel_l2, enough, ref.dtype)
                self.errors[order, leaf.ref.name] = replace(error, bounded=near)
                if not near and ref.dtype.kind in "fcV":
                    wanted.add(order)
            if match.parent != -1 and self._changed(match):
                wanted.add(match.parent)
        return wanted

    def submit(
        self, background: Background, match: Match, handed: Tensors, outputs: Tensors
    ) -> None:
        """Measure one call beside the run."""
        for leaf in self._measurable(match) if outputs else ():
            wide = outputs.get(leaf.ref.name)
            background.submit(self._output, match, leaf, _in_layout(wide, leaf))
        if match.ref.parent != -1:
            for leaf in self._changed(match):
                wide = handed.get(leaf.ref.name)
                background.submit(self._input, match, leaf, _in_layout(wide, leaf))

    def result(self, problem: str = "") -> Exclusives:
        """What was measured; `problem` is why there is no float64 run."""
        nan = float("nan")
        for match in self.matches:
            run = self.forced.get(match.ref.order)
            for leaf in match.outputs:
                if comparable(leaf):
                    why = unforced(match) or problem
                    why = why or (NO_CALL if run is None else run.problem or OTHER_OUTPUT)
                    missing = Exclusive(nan, nan, 0, problem=why)
                    self.errors.setdefault((match.ref.order, leaf.ref.name), missing)
        by_parent: dict[int, list[Handed]] = defaultdict(list)
        for key in sorted(self.handed):
            found = self.handed[key]
            by_parent[found.parent].append(found)
        handed = {order: tuple(found) for order, found in by_parent.items()}
        return Exclusives(self.errors, handed, self.forced)

    def _output(self, match: Match, leaf: LeafMatch, wide: Array | None) -> None:
        ref, port = self._both(leaf, self.forced[match.ref.order].outputs)
        error = score(ref, port, wide)
        if error.moved and error.mae > 0:
            error = replace(error, moved=self._only_moves(ref, match.ref, match.ref.order))
        self.errors[match.ref.order, leaf.ref.name] = error

    def _input(self, match: Match, leaf: LeafMatch, wide: Array | None) -> None:
        ref, port = self._both(leaf, self.forced[match.ref.order].received)
        error = score(ref, port, wide)
        if error.moved and error.mae > 0:
            parent = self._by_order[match.parent]
            moved = self._only_moves(ref, parent.ref, match.parent, before=match.ref.order)
            error = replace(error, moved=moved)
        before = self._before.get(match.ref.order, "")
        self.handed[match.ref.order, leaf.ref.name] = Handed(
            match.parent, match.ref.order, match.ref.path, leaf.ref.name, before, error
        )

    def _only_moves(self, result: Array, call: Call, order: int, before: int | None = None) -> bool:
        """Whether every value of `result` is one that `call` was given or got from inside, or 0.

        Without rounding alone is not enough: a mean of small whole numbers is exact too.
        """
        inside = [m.ref for m in self.matches
                  if m.parent == order and (before is None or m.ref.order < before)]  # fmt: skip
        leaves = [*call.inputs, *(leaf for child in inside for leaf in child.outputs)]
        sources = [self.store.get(leaf.buffer).ravel() for leaf in leaves if leaf.buffer]
        known = np.unique(np.concatenate([np.zeros(1, result.dtype), *sources]))
        return bool(np.isin(result, known).all())

    def _measurable(self, match: Match) -> list[LeafMatch]:
        run = None if unforced(match) else self.forced.get(match.ref.order)
        outputs = run.outputs if run else {}
        leaves = [leaf for leaf in match.outputs if comparable(leaf)]
        return [leaf for leaf in leaves if leaf.port and leaf.port.name in outputs]

    def _changed(self, match: Match) -> list[LeafMatch]:
        """Inputs that the port handed over otherwise than the reference did."""
        run = self.forced.get(match.ref.order)
        received = run.received if run else {}
        changed = []
        for leaf in match.inputs:
            buffers = comparable(leaf)
            own = received.get(leaf.port.name) if leaf.port else None
            if buffers and own and (leaf.undo or own.digest != buffers[0].digest):
                changed.append(leaf)
        return changed

    def _both(self, leaf: LeafMatch, own: Mapping[str, object]) -> tuple[Array, Array]:
        assert leaf.port is not None
        buffer = own[leaf.port.name]
        return reference(leaf, self.store), self.store.get(buffer)  # type: ignore[arg-type]


def _in_layout(wide: object, leaf: LeafMatch) -> Array | None:
    if wide is None:
        return None
    array = to_array(wide, leaf.ref.moved)  # type: ignore[arg-type]
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if leaf.undo else array
