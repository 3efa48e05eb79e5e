"""A limit on the time that one part of a run may take."""

import math
import time


class TimeLimit:
    """Seconds that pass in the blocks of it, all together; without a number there is no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self._left = math.inf if seconds is None else seconds
        self._since = math.inf

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._left -= time.monotonic() - self._since
        self._since = math.inf

    @property
    def over(self) -> bool:
        """True if no time is left."""
        return max(time.monotonic() - self._since, 0.0) >= self._left
