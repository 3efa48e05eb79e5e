"""What a step costs each device: the formulae against the compiled programs."""

import json
from pathlib import Path

import pytest

from tests.commands import python
from tools.measure_sharding import SMALL, communicated, extrapolate
from tools.scaling import Chip, Split, step_cost

ROOT = Path(__file__).parents[2]
MEASURE = """
import json, sys
from dataclasses import asdict
from tools.measure_sharding import measure
splits = [(axis, 2) for axis in sys.argv[1:]] + [("width", 1)]
rows = [measure(direction, *split) for direction in ("encode", "decode") for split in splits]
print(json.dumps([asdict(row) for row in rows]))
"""


def test_bytes_are_read_from_a_program():
    program = """
      %a = f32[1,6,8,1,16]{4,3,2,1,0} collective-permute(f32[1,6,8,1,16] %p), channel_id=1
      %b = (f32[1,32]{1,0}, bf16[4]{0}) all-reduce(%q, %r), to_apply=%sum
      %c = f32[8]{0} add(%collective-permute, %all-reduce)
    """
    assert communicated(program) == {"collective-permute": 4 * 768, "all-reduce": 4 * 32 + 2 * 4}


def test_what_splits_costs_less_and_is_sent():
    size = (4, 64, 64)
    alone = step_cost(SMALL, "encode", size, Split(), 2)
    assert alone.bytes == alone.messages == 0
    time = step_cost(SMALL, "encode", size, Split(time=4), 2)
    assert time.flops == alone.flops
    assert time.halo == time.sums == 0 < time.past
    space = step_cost(SMALL, "encode", size, Split(height=2, width=2), 2)
    assert alone.flops / 4 < space.flops < 1.05 * alone.flops / 4
    # twice as many devices along width halve the lines that height sends, and no other
    wider = step_cost(SMALL, "encode", size, Split(height=2, width=4), 2)
    assert space.halo / 2 < wider.halo < space.halo
    assert wider.sums == space.sums


def test_more_chips_are_faster_until_messages_take_longer():
    free = Chip(918e12, float("inf"), 0)
    rows = extrapolate("decode", (13, 60, 90), 2, free)
    speedups = [row["speedup"] for row in rows]
    assert speedups[0] == 1
    assert speedups == sorted(speedups)
    assert all(row["speedup"] <= row["chips"] for row in rows)
    slow = extrapolate("decode", (13, 60, 90), 2, Chip(918e12, 100e9, 1e-3))
    assert slow[1]["speedup"] < rows[1]["speedup"]


@pytest.mark.slow
def test_the_formulae_are_those_of_the_compiled_programs():
    words = ("-c", MEASURE, "batch", "width", "time")
    rows = json.loads(python(*words, devices=2, cwd=ROOT, PYTHONPATH=str(ROOT)))
    of = {(row["direction"], row["split"], row["devices"]): row for row in rows}
    for direction in ("encode", "decode"):
        alone, half = (of[direction, "width", devices] for devices in (1, 2))
        # half of all, and the lines at the border that it is sent
        assert half["memory"] <= alone["memory"] / 2 + half["permuted"]
    for row in rows:
        if row["direction"] == "encode" and row["permuted"] and row["split"] == "width":
            # the padding of a downsampler moves lines between devices, and is one line longer
            assert 1 <= row["permuted"] / row["permuted_formula"] < 1.01, row
        else:
            assert row["permuted"] == row["permuted_formula"], row
        assert row["reduced"] == row["reduced_formula"], row
        assert row["gathered"] == 0, row
        assert 1 <= row["flops"] / row["flops_formula"] < 1.1, row  # norms and activations too
