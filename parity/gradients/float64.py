"""The reference's gradients in float64, with how far roundings move them."""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from parity.core.arrays import Array, read
from parity.core.calls import Reading
from parity.core.store import Buffer, Store
from parity.force.common import NotMeasured
from parity.gradients.noise import SAMPLES
from parity.gradients.records import Gradients, Key


class Float64:
    """Gradients of one run in float64, and of further ones with a few roundings more if asked for.

    `run` makes one, given the number of a sample, and raises NotMeasured if it cannot.
    """

    def __init__(self, run: Callable[[int], Gradients], store: Store) -> None:
        self._run, self._store = run, store
        self._gradients = run(0)

    def get(self, key: Key, reading: Reading | None = None) -> Array | None:
        """A gradient; `None` if it is zero, or not known."""
        found = self._gradients.of.get(key)
        return None if found is None else read(self._store, found, reading)

    def moved(self, key: Key, reading: Reading | None = None) -> Array | None:
        """How far a few roundings move each entry, in the worst of some samples.

        Raises:
            NotMeasured: the reference did not run so.
        """
        moved, problem = self._moved
        if problem is not None:
            raise problem
        found = moved.get(key)
        return None if found is None else read(self._store, found, reading)

    @cached_property
    def _moved(self) -> tuple[Mapping[Key, Buffer], NotMeasured | None]:
        found: dict[Key, Buffer] = {}
        for sample in range(1, SAMPLES + 1):
            try:
                again = self._run(sample).of
            except NotMeasured as error:
                return {}, error
            for key in self._gradients.of.keys() & again.keys():
                before = self._store.get(self._gradients.of[key])
                moved = np.abs(self._store.get(again[key]) - before)
                if key in found:
                    moved = np.maximum(moved, self._store.get(found[key]))
                found[key] = self._store.put(moved)
        return found, None
