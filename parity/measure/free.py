"""Free-running error: what the port computes on its own, call by call, against the reference."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from parity.core.arrays import Array, comparable, read
from parity.core.calls import LeafMatch, Match, Reading
from parity.core.measurements import Metrics
from parity.core.metrics import compare_arrays, ratio, rms_distance
from parity.core.store import Buffer, Store
from parity.host.progress import Progress

Key = tuple[int, str]
"""The `order` of a reference call, and the name of an output leaf."""

THREADS = 4
"""At most: memory bounds how many pairs of arrays can be measured at once."""

_Job = tuple[Buffer, Buffer, Reading | None]
T = TypeVar("T")


@dataclass(frozen=True)
class Free:
    """Errors by output leaf, and the relative error of the inputs of each call."""

    errors: Mapping[Key, Metrics]
    given: Mapping[int, float]

    def gain(self, key: Key) -> float:
        """Relative error of an output in units of that of the inputs; NaN where these are exact."""
        given = self.given.get(key[0], math.nan)
        return self.errors[key].rel_l2 / given if key in self.errors and given else math.nan


def measure_free(matches: Sequence[Match], store: Store, progress: Progress) -> Free:
    """Measure every comparable leaf; each distinct pair of buffers once."""
    outputs: dict[Key, _Job] = {}
    inputs: dict[int, list[_Job]] = {}
    for match in matches:
        outputs |= {(match.ref.order, leaf.ref.name): job for leaf, job in _jobs(match.outputs)}
        inputs[match.ref.order] = [job for _, job in _jobs(match.inputs)]
    returned = dict.fromkeys(outputs.values())
    # of what calls were given only the relative error is asked, unless another call returned it
    differing = {job: None for given in inputs.values() for job in given if not _exact(job)}
    given_only = [job for job in differing if job not in returned]
    progress.stage("free-running error", len(returned) + len(given_only))

    def measured(how: Callable[[Array, Array], T], job: _Job) -> tuple[_Job, T]:
        ref, port, reading = job
        found = how(read(store, ref, reading), store.get(port))
        progress.advance()
        return job, found

    # NumPy releases the lock inside its loops; each thread holds two arrays
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        metrics = dict(pool.map(partial(measured, compare_arrays), returned))
        distances = dict(pool.map(partial(measured, rms_distance), given_only))
    distances |= {job: (found.mse**0.5, found.ref_rms) for job, found in metrics.items()}
    return Free(
        {key: metrics[job] for key, job in outputs.items()},
        {order: _together(given, distances) for order, given in inputs.items()},
    )


def _jobs(leaves: Sequence[LeafMatch]) -> list[tuple[LeafMatch, _Job]]:
    pairs = [(leaf, comparable(leaf)) for leaf in leaves]
    return [(leaf, (*buffers, leaf.reading)) for leaf, buffers in pairs if buffers]


def _exact(job: _Job) -> bool:
    ref, port, reading = job
    return not reading and ref.digest == port.digest


def _together(given: Sequence[_Job], distances: Mapping[_Job, tuple[float, float]]) -> float:
    """Relative error of several arrays taken as one; 0 where all are exact."""
    error = whole = 0.0
    for job in given:
        if job in distances and not _exact(job):
            gap, norm = distances[job]
            error += gap**2 * job[0].size
            whole += norm**2 * job[0].size
    return ratio(error**0.5, whole**0.5)
