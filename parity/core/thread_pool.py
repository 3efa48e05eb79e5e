"""Measuring goes on beside computing: jobs on other threads, only a few of them waiting."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Background:
    """Runs jobs in the order given; at most `waiting` are not done, so that memory stays bounded.

    An error in a job is raised by a later `submit`, or where the block ends.
    """

    def __init__(self, threads: int = 1, waiting: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, "parity-measure")
        self._waiting, self._jobs = waiting, deque[Future[None]]()

    def submit(self, job: Callable[..., None], *args: Any) -> None:
        """Run `job(*args)` soon; blocks while too many wait."""
        if len(self._jobs) >= self._waiting:
            self._jobs.popleft().result()
        self._jobs.append(self._pool.submit(job, *args))

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            while self._jobs and kind is None:
                self._jobs.popleft().result()
        finally:  # after an interrupt too: a job may have changed a model, and undoes that
            self._pool.shutdown(wait=True, cancel_futures=True)
