"""The CPU benchmark: what it compares, and that the whole command works."""

import json

import pytest
from click.testing import CliRunner

from bench import cpu


def record(**seconds):
    return {name: {"seconds": times, "median": times[1]} for name, times in seconds.items()}


def test_the_fastest_of_pytorch_is_compared_turn_by_turn():
    found = cpu.compared(
        record(contiguous=[4, 5, 6], channels_last_3d=[2, 3, 9], JAX=[1, 2, 3])
        | {"compile": {"skipped": "no compiler"}}
    )
    assert found == {"fastest": "channels_last_3d", "ratios": [2, 1.5, 3], "ratio": 2}


@pytest.mark.slow
def test_the_command_writes_its_tables(tmp_path):
    done = CliRunner().invoke(cpu.main, ["--tiny", "--rounds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "cpu.json").read_text())
    assert [row["direction"] for row in report["rows"]] == ["encode", "decode"]
    for row in report["rows"]:
        assert 0 < row["relative rms error"] < 1e-5
        assert row["ratio"] > 0
        assert row["operations"] > 1e7
    table = (tmp_path / "cpu.md").read_text()
    for line in table.splitlines():
        assert line in done.output or not line.startswith("|")
    assert "| encode 9x16x24 |" in table
