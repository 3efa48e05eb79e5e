"""The progress of a long run, told to whoever listens; nobody by default."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from parity.host.memory import LargestStage, gib


class Progress:
    """Counts steps of one stage at a time; `listener(stage, done, total)` hears of each.

    How long each kind of stage took is kept too, and which one took most memory.
    """

    def __init__(self, listener: Callable[[str, int, int], None] | None = None) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._title, self._stage, self._done, self._total = "", "", 0, 0
        self._name, self._since = "", time.monotonic()
        self._seconds: dict[str, float] = defaultdict(float)
        self._largest = LargestStage()

    def title(self, title: str) -> None:
        """Name what the following stages belong to."""
        self._title = title

    def stage(self, name: str, total: int = 1) -> None:
        """A stage of `total` steps begins."""
        self._close()
        self._largest.begin()
        self._name = name
        self._stage = f"{self._title}: {name}" if self._title else name
        self._done, self._total = 0, total
        self._tell()

    def seconds(self) -> Mapping[str, float]:
        """Seconds so far, by stage, whatever it belonged to."""
        self._close()
        return {name: round(value, 1) for name, value in self._seconds.items() if name}

    def facts(self) -> Mapping[str, Any]:
        """Facts for a report: the seconds of each stage, the slowest and the largest one."""
        largest, stages = self.largest(), self.seconds()
        slowest = max(stages, key=lambda name: stages[name])
        share = 100 * stages[slowest] / (sum(stages.values()) or 1)
        return {
            "seconds_by_stage": stages,
            "slowest_stage": f"{slowest}, {share:.0f} %",
            "largest_stage": largest.name,
            "largest_stage_gib": gib(largest.rise),
        }

    def largest(self) -> LargestStage:
        """The stage that needed most memory so far."""
        self._close()
        return self._largest

    def _close(self) -> None:
        if self._name:  # what came before the first stage, such as imports, belongs to none
            self._largest.end(self._stage)
        now = time.monotonic()
        self._seconds[self._name] += now - self._since
        self._since = now

    def advance(self) -> None:
        """A step is done; may be called from several threads."""
        with self._lock:
            self._done += 1
            self._tell()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener(self._stage, self._done, self._total)
