"""The reference's gradients in float64, with the noise of each."""

from collections.abc import Callable, Sequence

import numpy as np

from parity.core.arrays import Array, read
from parity.core.calls import Reading
from parity.core.store import Buffer, Store
from parity.gradients.noise import SHAKES
from parity.gradients.protocol import Key, WideGradients

Noise = tuple[Array | None, float, Array | None]
"""A gradient, the size of the roundings of its terms, and how far each entry jumps."""


class Float64:
    """Gradients of one run in float64: of all calls by themselves, or of one with its subtree.

    `run` makes it, and raises NotMeasured if it cannot.
    """

    def __init__(self, run: Callable[[int], WideGradients], store: Store) -> None:
        self._run, self._store = run, store
        self._gradients = run(0)
        self._jumps: dict[Key, Buffer] = {}

    def goes_to(self, key: Key) -> Sequence[int]:
        """The calls that an output goes on to, by `order`; that of the parent if returned."""
        return self._gradients.flows.get(key, ())

    def get(self, key: Key, reading: Reading | None = None) -> Noise:
        """A gradient and its noise; nothing of one that is not known."""
        found, jump = self._gradients.of.get(key), self._jumps.get(key)
        if found is None:
            return None, 0.0, None
        jumps = None if jump is None else read(self._store, jump, reading)
        return read(self._store, found.value, reading), found.spread, jumps

    def shake(self) -> None:
        """Measure how far a few roundings move each entry of a gradient.

        A mask, a maximum or a clamp of what is computed inside a call takes the other side when
        that is near enough to it: gradients jump then, on either side.
        """
        for number in range(1, SHAKES + 1):
            again = self._run(number)
            for key in self._gradients.of.keys() & again.of.keys():
                before, after = self._gradients.of[key].value, again.of[key].value
                jump = np.abs(self._store.get(after) - self._store.get(before))
                if key in self._jumps:
                    jump = np.maximum(jump, self._store.get(self._jumps[key]))
                self._jumps[key] = self._store.put(jump)
