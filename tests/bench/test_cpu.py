"""The CPU benchmark: what it compares, and that the whole command works."""

import gc
import itertools
import json
import sys

import pytest
from click.testing import CliRunner

from bench import cpu, sides
from bench.sides import MODELS, Side, Spec


def record(**seconds):
    return {name: {"seconds": times, "median": times[1]} for name, times in seconds.items()}


def test_the_fastest_of_pytorch_is_compared_turn_by_turn():
    found = cpu.compared(
        record(contiguous=[4, 5, 6], channels_last=[2, 3, 9], JAX=[1, 2, 3])
        | {"compile": {"skipped": "no compiler"}}
    )
    assert found == {"fastest": "channels_last", "ratios": [2, 1.5, 3], "ratio": 2}


def test_a_side_that_has_answered_leaves_the_cores_to_the_others(monkeypatch):
    """Collecting PyTorch's garbage took 0.1 s of each of the port's runs."""
    did = []

    class Pipe:
        asked = iter([("seconds", ()), ("seconds", ())])

        def recv(self):
            did.append("recv")
            try:
                return next(self.asked)
            except StopIteration:
                raise EOFError from None

        def send(self, answer):
            did.append(answer[0])

    class Idle:
        def __init__(self, spec):
            pass

        def seconds(self):
            return 0.0

    monkeypatch.setattr(sides, "JaxSide", Idle)
    monkeypatch.setattr(sides, "_forget_peak", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda: did.append("collect"))
    sides._serve(Pipe(), Spec("JAX", "cpu", "small", "decode", "float32", 1, 16, 16))
    assert did == ["recv", "collect", "done"] * 2 + ["recv"]


@pytest.mark.slow
def test_the_command_writes_its_tables(tmp_path):
    done = CliRunner().invoke(cpu.main, ["--tiny", "--rounds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / f"{cpu.machine()}.json").read_text())
    rows = [(row["model"], row["direction"]) for row in report["rows"]]
    assert rows == list(itertools.product(("cogvideox", "kl", "wan"), ("encode", "decode")))
    for row in report["rows"]:
        assert 0 < row["relative rms error"] < 1e-5
        assert row["ratio"] > 0
        assert row["operations"] > 1e7
    table = (tmp_path / f"{cpu.machine()}.md").read_text()
    for line in table.splitlines():
        assert line in done.output or not line.startswith("|")
    assert "| cogvideox encode 9x16x24 |" in table


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="a process can reset its peak on Linux alone, in /proc"
)
@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("cogvideox", (9, 64, 64)),
        ("cogvideox", (9, 128, 128)),
        ("kl", (1, 512, 512)),
        ("wan", (9, 128, 128)),
    ],
)
def test_the_port_takes_at_most_half_as_much_memory_again(model, size, direction):
    """Peaks of the processes, frameworks and weights and all."""
    peaks = {}
    for framework in ("PyTorch", "JAX"):
        spec = Spec(framework, "cpu", MODELS[model], direction, "float32", *size, model=model)
        with Side(spec) as side:
            for _ in range(2):
                side.ask("seconds")
            peaks[framework] = side.ask("memory")["resident"]
    assert peaks["JAX"] < 1.5 * peaks["PyTorch"], peaks
