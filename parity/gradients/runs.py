"""The records of the runs whose gradients are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from parity.core.calls import Leaf, LeafMatch, Match
from parity.core.metrics import distance
from parity.core.store import Buffer
from parity.core.tensors import Weight
from parity.force.common import Recording, reference, unforced
from parity.gradients.float64 import Float64
from parity.gradients.nnx import PortRun
from parity.gradients.protocol import Gradients, Key, Side, WideGradients, differentiable, paired


@dataclass
class Runs:
    """Gradients of the reference as it runs and in float64, and of the port.

    `recording` holds the calls of the reference, `problem` says why there are no more gradients.
    """

    recording: Recording
    weights: Sequence[Weight]
    recorded: Gradients = field(default_factory=lambda: Gradients({}))
    port: PortRun = field(default_factory=PortRun)
    problem: str = ""

    def __post_init__(self) -> None:
        self.float64 = Float64(lambda _: WideGradients({}), self.recording.store)

    def why(self, match: Match) -> str:
        """The reason why a call has no gradients to compare, `""` if it has."""
        order = match.ref.order
        return (
            self.problem
            or unforced(match)
            or self.port.problems.get(order, "")
            or self._one_sided.get(order, "")
        )

    def forward(self, match: Match) -> float:
        """The largest relative error of what the local code of a call returns."""
        found, store = [0.0], self.recording.store
        for leaf in paired(match.outputs):
            assert leaf.port is not None
            buffer = self.port.outputs.get((match.ref.order, leaf.port.name))
            if buffer is not None and buffer.shape == reference(leaf, store).shape:
                found.append(distance(reference(leaf, store), store.get(buffer))[1])
        return max(found)

    @cached_property
    def _one_sided(self) -> Mapping[int, str]:
        """Calls with a gradient that only one side can have, by `order`."""
        found = dict(self._lacking())
        known = {
            (match.ref.order, leaf.port.name)
            for match in self.recording.matches
            for leaf in paired(match.outputs)
            if leaf.port
        }
        for (order, side, name), buffer in self.port.local.items():
            if side == "output" and (order, name) not in known and self._any(buffer):
                found[order] = f"not measured: the reference has no output {name!r}"
        return found

    def _lacking(self) -> Iterator[tuple[int, str]]:
        """Calls with a gradient at a leaf that the port does not have."""
        for match in self.recording.matches:
            sides: tuple[tuple[Side, int, Sequence[LeafMatch], Sequence[Leaf]], ...] = (
                ("output", match.ref.order, match.outputs, match.ref.outputs),
                ("input", match.parent, match.inputs, match.ref.inputs),
            )
            for side, blamed, leaves, recorded in sides:
                both = {leaf.ref.name for leaf in paired(leaves)}
                for leaf in recorded:
                    key: Key = (match.ref.order, side, leaf.name)
                    missing = differentiable(leaf) and leaf.name not in both
                    if missing and self._any(self.recorded.of.get(key)):
                        where = f"{side} {leaf.name!r} of `{match.ref.path or '<root>'}`"
                        yield (
                            blamed,
                            f"not measured: the port has no {where}, where a gradient arrives",
                        )

    def _any(self, buffer: Buffer | None) -> bool:
        return buffer is not None and bool(np.any(self.recording.store.get(buffer)))
