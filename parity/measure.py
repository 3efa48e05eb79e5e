"""Free-running error: what the port computes on its own, call by call, against the reference."""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped

from parity.metrics import compare_arrays, ratio
from parity.progress import Progress
from parity.records import LeafMatch, Match, Metrics
from parity.store import Buffer, Store

Key = tuple[int, str]
"""The `order` of a reference call, and the name of an output leaf."""

THREADS = 4
"""At most: memory bounds how many pairs of arrays can be measured at once."""

_Job = tuple[Buffer, Buffer, bool]


@dataclass(frozen=True)
class Free:
    """Errors by output leaf, and the relative error of what each call was given."""

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
    jobs = list(dict.fromkeys(outputs.values()))
    jobs += [job for given in inputs.values() for job in given if not _exact(job)]
    jobs = list(dict.fromkeys(jobs))
    progress.stage("free-running error", len(jobs))

    def one(job: _Job) -> Metrics:
        ref, port, undo = job
        metrics = compare_arrays(read(store, ref, undo), store.get(port))
        progress.advance()
        return metrics

    # NumPy releases the lock inside its loops; each thread holds two arrays
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        done = dict(zip(jobs, pool.map(one, jobs), strict=True))
    return Free(
        {key: done[job] for key, job in outputs.items()},
        {order: _together(given, done) for order, given in inputs.items()},
    )


def read(store: Store, ref: Buffer, undo: bool) -> Shaped[np.ndarray, "..."]:
    """A reference array in the port's layout; `undo` takes back the move of its channel axis."""
    array = store.get(ref)
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if undo else array


def comparable(leaf: LeafMatch) -> tuple[Buffer, Buffer] | None:
    """The buffers of both sides, if they can be subtracted."""
    if leaf.problem or not (leaf.ref.buffer and leaf.port and leaf.port.buffer):
        return None
    return leaf.ref.buffer, leaf.port.buffer


def _jobs(leaves: Sequence[LeafMatch]) -> list[tuple[LeafMatch, _Job]]:
    pairs = [(leaf, comparable(leaf)) for leaf in leaves]
    return [(leaf, (*buffers, leaf.undo)) for leaf, buffers in pairs if buffers]


def _exact(job: _Job) -> bool:
    ref, port, undo = job
    return not undo and ref.digest == port.digest


def _together(given: Sequence[_Job], done: Mapping[_Job, Metrics]) -> float:
    """Relative error of several arrays taken as one; 0 where all are exact."""
    error = whole = 0.0
    for job in given:
        metrics = done.get(job)
        if metrics is not None and not _exact(job):
            error += metrics.mse * job[0].size
            whole += metrics.ref_rms**2 * job[0].size
    return ratio(error**0.5, whole**0.5)
