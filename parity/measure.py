"""Free-running error: what the port computes on its own, call by call, against the reference."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Shaped

from parity.metrics import compare_arrays
from parity.progress import Progress
from parity.records import LeafMatch, Match, Metrics
from parity.store import Buffer, Store

Key = tuple[int, str]
"""The `order` of a reference call, and the name of an output leaf."""


def measure_free(
    matches: Sequence[Match], store: Store, progress: Progress
) -> Mapping[Key, Metrics]:
    """Measure every comparable output leaf; each distinct pair of buffers once."""
    wanted: dict[Key, tuple[Buffer, Buffer, bool]] = {}
    for match in matches:
        for leaf in match.outputs:
            buffers = comparable(leaf)
            if buffers:
                wanted[match.ref.order, leaf.ref.name] = (*buffers, leaf.undo)
    jobs = list(dict.fromkeys(wanted.values()))
    progress.stage("free-running error", len(jobs))

    def one(job: tuple[Buffer, Buffer, bool]) -> Metrics:
        ref, port, undo = job
        metrics = compare_arrays(read(store, ref, undo), store.get(port))
        progress.advance()
        return metrics

    # NumPy releases the lock inside its loops
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = dict(zip(jobs, pool.map(one, jobs), strict=True))
    return {key: done[job] for key, job in wanted.items()}


def read(store: Store, ref: Buffer, undo: bool) -> Shaped[np.ndarray, "..."]:
    """A reference array in the port's layout; `undo` takes back the move of its channel axis."""
    array = store.get(ref)
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if undo else array


def comparable(leaf: LeafMatch) -> tuple[Buffer, Buffer] | None:
    """The buffers of both sides, if they can be subtracted."""
    if leaf.problem or not (leaf.ref.buffer and leaf.port and leaf.port.buffer):
        return None
    return leaf.ref.buffer, leaf.port.buffer
