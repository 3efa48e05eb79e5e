"""Free-running error: what the port computes on its own, call by call, against the reference."""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from parity.core.arrays import comparable, read
from parity.core.calls import LeafMatch, Match
from parity.core.measurements import Metrics
from parity.core.metrics import compare_arrays, ratio
from parity.core.store import Buffer, Store
from parity.host.progress import Progress

Key = tuple[int, str]
"""The `order` of a reference call, and the name of an output leaf."""

THREADS = 4
"""At most: memory bounds how many pairs of arrays can be measured at once."""

_Job = tuple[Buffer, Buffer, bool]


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
        inputs[match.ref.order] = [job for _, job in _jobs(match.inputs) if not _exact(job)]
    distinct = dict.fromkeys(
        [*outputs.values(), *(job for given in inputs.values() for job in given)]
    )
    progress.stage("free-running error", len(distinct))

    def measured(job: _Job) -> tuple[_Job, Metrics]:
        ref, port, undo = job
        found = compare_arrays(read(store, ref, undo), store.get(port))
        progress.advance()
        return job, found

    # NumPy releases the lock inside its loops; each thread holds two arrays
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        metrics = dict(pool.map(measured, distinct))
    return Free(
        {key: metrics[job] for key, job in outputs.items()},
        {order: _together(given, metrics) for order, given in inputs.items()},
    )


def _jobs(leaves: Sequence[LeafMatch]) -> list[tuple[LeafMatch, _Job]]:
    pairs = [(leaf, comparable(leaf)) for leaf in leaves]
    return [(leaf, (*buffers, leaf.undo)) for leaf, buffers in pairs if buffers]


def _exact(job: _Job) -> bool:
    ref, port, undo = job
    return not undo and ref.digest == port.digest


def _together(given: Sequence[_Job], metrics: Mapping[_Job, Metrics]) -> float:
    """Relative error of several arrays taken as one; 0 where all are exact."""
    error = sum(metrics[job].mse * job[0].size for job in given)
    whole = sum(metrics[job].ref_rms ** 2 * job[0].size for job in given)
    return ratio(error**0.5, whole**0.5)
