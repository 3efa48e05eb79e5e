"""Programs that JAX has compiled, and the memory that they hold."""

from typing import Any

import jax

from parity.core.tree import flatten
from parity.host import memory


class Programs:
    """Compiled programs: they hold memory until the process ends, unless they are dropped."""

    def __init__(self, own_process: bool) -> None:
        self._own_process = own_process
        self._shapes: list[tuple[int, ...]] = []

    def before(self, path: str, given: Any) -> None:
        """Drop them in a process of its own if the root gets other shapes than the last time."""
        shapes = [array.shape for _, array in flatten(given).arrays]
        if self._own_process and not path and shapes != self._shapes:
            jax.clear_caches()
            memory.give_back()
            self._shapes = shapes
