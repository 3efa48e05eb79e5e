"""The error that hardware with coarser products would add to a port.

The port runs again as on such hardware. What it makes of the same inputs then is measured against
what it makes of them in float32, not against the reference: the difference is the hardware's.
"""

from functools import partial
from typing import Any

import numpy as np

from parity.core.calls import LeafMatch, Match
from parity.core.limits import fail_limit
from parity.core.measurements import Emulation, Loss
from parity.core.metrics import distance
from parity.core.store import Buffer, Store
from parity.core.thread_pool import Background
from parity.core.tree import Flat, flatten
from parity.extras.emulation import emulated
from parity.force.common import Arrays, Recording, Sides, by_port_leaf, reference, unforced
from parity.force.nnx import force_port, repeat
from parity.host.progress import Progress
from parity.measure.exclusive import Exclusives
from parity.measure.free import Free
from parity.measure.masks import unmasked
from parity.measure.noise import bounded

WORST = 20
"""How many calls are kept."""


def measure_emulated(
    mode: str,
    case: str,
    recording: Recording,
    sides: Sides,
    free: Free,
    exclusives: Exclusives,
    progress: Progress,
) -> Emulation:
    """Run the port so: on its own, and for each call on the reference's inputs.

    `recording` holds the calls of the port. A call loses precision if it differs from itself in
    float32 by more than the limit on R of its kind of module leaves to rounding.
    """
    root, store = recording.root, recording.store
    progress.stage(f"emulating {mode}", len(recording.matches))
    work = _Work(recording, exclusives, progress)
    with emulated(mode):
        given = [store.get(leaf.buffer) for leaf in root.port.inputs if leaf.buffer]
        output = repeat(sides.nnx_modules[root.port.path], sides.nnx_method, root.port, given)
        outputs = _added(root, flatten(output), free, store)
        # where nothing changes at the end, nothing was rounded
        if any(added for added, _ in outputs.values()):
            with Background() as background:
                submit = partial(background.submit, work.measure)
                force_port(sides, recording, submit)
    losses = sorted(work.losses, key=lambda loss: -loss.rel_l2)
    return Emulation(
        mode, case, root.ref.path, outputs, tuple(losses[:WORST]), len(work.lossy), len(work.calls)
    )


def _added(root: Match, output: Flat, free: Free, store: Store) -> dict[str, tuple[float, float]]:
    """By output leaf of the root: what was added, and the port's error without it."""
    arrays = {name: np.asarray(value) for name, value in output.arrays}
    found = {}
    for name, leaf in by_port_leaf(root.outputs).items():
        key = _key(root, leaf)
        if key in free.errors and leaf.port and leaf.port.buffer and name in arrays:
            added = _distance(store.get(leaf.port.buffer), arrays[name])
            found[leaf.ref.name] = (added, free.errors[key].rel_l2)
    return found


class _Work:
    """The losses measured so far."""

    def __init__(self, recording: Recording, exclusives: Exclusives, progress: Progress) -> None:
        self._by_order = {match.ref.order: match for match in recording.matches}
        self._exclusives, self._store = exclusives, recording.store
        self._progress = progress
        self.losses: list[Loss] = []
        self.lossy: set[int] = set()
        self.calls: set[int] = set()

    def measure(self, match: Match, received: Arrays, outputs: Arrays) -> None:
        """Compare one call with the same call in float32, and what its parent passed to it."""
        own, passed = self._exclusives.outputs, self._exclusives.received
        parent = self._by_order.get(match.parent)
        if parent is not None:
            for name, leaf in by_port_leaf(match.inputs).items():
                self._add(parent, leaf, passed.get(_key(match, leaf)), received.get(name), match)
        if not unforced(match):
            self.calls.add(match.ref.order)
            for name, leaf in by_port_leaf(match.outputs).items():
                self._add(match, leaf, own.get(_key(match, leaf)), outputs.get(name), None)
        self._progress.advance()

    def _add(
        self,
        match: Match,
        leaf: LeafMatch,
        plain: Buffer | None,
        rounded: np.ndarray[Any, Any] | None,
        to: Match | None,
    ) -> None:
        if rounded is None:
            return
        # what was not kept is the reference's but for rounding
        exact = self._store.get(plain) if plain else reference(leaf, self._store)
        exact, rounded = unmasked(exact, rounded)
        error, call = _distance(exact, rounded), match.ref
        if error > 0 and not bounded(error, fail_limit(call.kind), exact.dtype):
            target = to.ref.path if to else ""
            self.losses.append(
                Loss(call.path, call.kind, call.number, leaf.ref.name, target, error)
            )
            self.lossy.add(call.order)


def _key(match: Match, leaf: LeafMatch) -> tuple[int, str]:
    return match.ref.order, leaf.ref.name


def _distance(exact: np.ndarray[Any, Any], rounded: np.ndarray[Any, Any]) -> float:
    """Relative L2, infinite between shapes; 0 where no entry is finite on either side."""
    if exact.shape != rounded.shape:
        return float("inf")
    error = distance(exact, rounded)[1]
    return error if error == error else 0.0
