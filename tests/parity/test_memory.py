"""The stage that needs most memory, in a process of its own: peaks of other tests would hide it."""

import jax
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.pipeline import run_pair
from tests.commands import python

SCRIPT = """
from parity.host.progress import Progress
progress = Progress()
progress.title("case")
progress.stage("small")
small = bytearray(b"x") * (40 << 20)
progress.stage("large")
large = bytearray(b"x") * (200 << 20)
del large
progress.stage("smaller than what was held before")
again = bytearray(b"x") * (100 << 20)
largest = progress.largest()
print(largest.name, largest.rise >> 20, sep="|")
"""


def test_the_stage_that_set_the_peak_and_how_far_it_rose():
    name, rise = python("-c", SCRIPT).strip().split("|")
    assert name == "case: large"
    assert 195 <= int(rise) <= 215


FREED = """
import numpy as np
from parity.host import memory
from parity.host.progress import Progress
progress = Progress()
progress.stage("many small arrays, and one that stays behind them")
arrays = [np.ones(12_000) for _ in range(4000)]
last = np.ones(12_000)
del arrays
before = memory.resident_memory()
progress.stage("next")
print(before - memory.resident_memory() >> 20)
"""


def test_what_a_stage_freed_is_given_back():
    assert int(python("-c", FREED)) >= 300


def whole(frames, name):
    return parity.Case(f"call/{name}", (np.zeros((1, 3, frames, 8, 8), np.float32),))


CASES = parity.Pair(
    name="cases",
    make_torch=lambda options, seed: torch.nn.Identity(),
    make_nnx=lambda options, reference: nnx.Dropout(0.5, deterministic=True),
    cases=lambda reference, options, seed: (
        whole(2, "two"), whole(2, "two again"), whole(1, "one"),
    ),
    rungs=(),
)  # fmt: skip


@pytest.mark.parametrize(("own_process", "times"), [(False, 0), (True, 2)])
def test_programs_are_dropped_for_other_shapes_in_a_process_of_its_own(
    monkeypatch, own_process, times
):
    dropped = []
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(True))
    assert run_pair(CASES, own_process=own_process).verdict != "FAIL"
    assert len(dropped) == times
