"""Measuring goes on beside computing: jobs on other threads, only a few of them waiting."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any


class Background:
    """Runs jobs in the order given; at most `waiting` are not done, so that memory stays bounded.

    An error in a job is raised where the block ends.
    """

    def __init__(self, threads: int = 1, waiting: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, "parity-measure")
        self._room = BoundedSemaphore(waiting)
        self._error: BaseException | None = None

    def submit(self, job: Callable[..., None], *args: Any) -> None:
        """Run `job(*args)` soon; blocks while too many wait."""
        self._room.acquire()
        self._pool.submit(self._run, job, args)

    def _run(self, job: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            if self._error is None:
                job(*args)
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._room.release()

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        finally:  # after an interrupt too: a job may have changed a model, and undoes that
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._error is not None and kind is None:
            raise self._error
