"""The GPU benchmark, on the CPU: sides that agree, failures that are rows, a budget that ends."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from bench import gpu
from bench.sides import MODELS, Failed, JaxSide, Side, Spec, TorchSide, family, short_of_memory

TINY = Spec("JAX", "cpu", "small", "decode", "float32", 9, 16, 24)


class Scripted:
    """A side whose answers are given: seconds, or what it raises."""

    def __init__(self, *seconds, memory=None):
        self.seconds = iter(seconds)
        self.stats = memory or {}

    def ask(self, method):
        if method == "memory":
            return self.stats
        answer = next(self.seconds)
        if isinstance(answer, Failed):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (TINY, (1, 9, 16, 24, 3)),
        (replace(TINY, model="kl", frames=1), (1, 16, 24, 3)),
        (replace(TINY, model="kl", layout="channels_last", direction="encode"), (1, 4, 6, 8)),
    ],
)
def test_both_sides_make_the_same_of_the_same_input(spec, shape):
    ours, theirs = JaxSide(spec), TorchSide(spec)
    output, reference = ours.output(), theirs.output()
    assert output.shape == shape
    found = gpu.distance(output, reference)
    assert 0 < found["rms"] < 1e-5
    assert 0 < found["max"] < 1e-5
    assert ours.seconds() > 0
    assert theirs.seconds() > 0
    assert set(theirs.memory()) == {"resident"}
    assert ours.memory()["temporary"] > 0


def test_a_side_says_why_it_cannot():
    absent = Spec("PyTorch", "gpu", "small", "decode", "float32", 9, 16, 24)
    with Side(absent) as side, pytest.raises(Failed, match="finds no CUDA device") as caught:
        side.ask("seconds")
    assert not caught.value.memory


def test_what_is_short_of_memory():
    assert short_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"))
    assert short_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"))
    assert not short_of_memory(RuntimeError("no compiler"))


def test_runs_are_in_turn_and_the_first_is_not_counted():
    sides = {"PyTorch": Scripted(9, 1, 3, 2, memory={"peak": 5}), "JAX": Scripted(8, 4, 4, 6)}
    record = gpu.in_turn(sides, 3)
    assert record["PyTorch"] == {"first": 9, "seconds": [1, 3, 2], "median": 2, "peak": 5}
    assert record["JAX"] == {"first": 8, "seconds": [4, 4, 6], "median": 4}


def test_a_side_that_fails_leaves_the_other():
    sides = {"PyTorch": Scripted(Failed("no compiler")), "JAX": Scripted(8, 4)}
    record = gpu.in_turn(sides, 1)
    assert record["PyTorch"] == {"skipped": "no compiler"}
    assert record["JAX"]["median"] == 4
    with pytest.raises(Failed, match="too little"):
        gpu.in_turn({"JAX": Scripted(Failed("too little", memory=True))}, 1)


class Scarce(Scripted):
    """A process on a machine whose memory does for one side, and of JAX only in tiles."""

    alive = 0

    def __init__(self, spec):
        super().__init__()
        self.framework, self.tiled = spec.framework, False

    def __enter__(self):
        Scarce.alive += 1
        return self

    def __exit__(self, *error):
        Scarce.alive -= 1

    def ask(self, method):
        if method == "tile":
            self.tiled = True
        if method != "seconds":
            return {}
        if Scarce.alive > 1 or (self.framework == "JAX" and not self.tiled):
            raise Failed("too little", memory=True)
        return 2.0


def test_too_little_memory_for_both_and_then_for_one(monkeypatch):
    monkeypatch.setattr(gpu, "Side", Scarce)
    row = gpu.Row("time", "decode", "bfloat16", 9, 16, 24)
    record = gpu.timing(row, "cpu", "small", 2, None)
    assert record["alone"]
    assert record["PyTorch"]["median"] == 2
    assert not record["PyTorch"]["tiled"]
    assert record["JAX"]["median"] == 2
    assert record["JAX"]["tiled"]
    assert Scarce.alive == 0


def test_the_budget_ends_and_says_what_it_left():
    rows = gpu.plan(tiny=True)
    records = list(gpu.measure(rows, lambda row: {}, iter([False] + [True] * 99).__next__, 5))
    assert len(records) == len(rows)
    assert "skipped" not in records[0]
    assert all(record["skipped"] == "left out: 5 minutes were over" for record in records[1:])
    table = gpu.markdown({"command": "c", "environment": {}, "rows": records[1:]})
    assert table.count("left out") == 2 * len(records[1:])


def test_a_row_that_fails_is_a_row():
    def run(row):
        raise Failed("no reference")

    row, *_ = gpu.plan(tiny=True)
    (record,) = gpu.measure([row], run, lambda: False, 5)
    assert record["skipped"] == "no reference"


def test_the_most_important_rows_come_first():
    rows = gpu.plan(tiny=False)
    assert [row.dtype for row in rows[:6]] == ["float32"] * 2 + ["tf32"] * 2 + ["bfloat16"] * 2
    assert rows[6].name == "time decode bfloat16 49x480x720 contiguous"
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.kind == "time" for row in rows[6:])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_rows(model):
    rows = gpu.plan(tiny=False, model=model)
    assert {row.model for row in rows} == {model}
    assert len({row.name for row in rows}) == len(rows) == len(gpu.plan(tiny=True))
    assert MODELS[model] in family(model).configs


def test_distance():
    found = gpu.distance(np.array([3.0, 4.0]), np.array([3.0, 5.0]))
    assert found["rms"] == pytest.approx((1 / 34) ** 0.5)
    assert found["max"] == pytest.approx(1 / 5)


@pytest.mark.slow
def test_the_command_on_the_cpu(tmp_path):
    """Every kind of row that comes before time is up; nothing it meets ends it."""
    words = ["--device", "cpu", "--tiny", "--rounds", "1", "--minutes", "3", "--out", str(tmp_path)]
    done = CliRunner().invoke(gpu.main, [*words, "--profile", str(tmp_path / "profile")])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert len(report["rows"]) == len(gpu.plan(tiny=True))
    first = report["rows"][0]
    assert first["PyTorch"]["rms"] < 1e-5
    assert first["JAX"]["rms"] < 1e-5
    assert (tmp_path / "gpu.md").read_text() == gpu.markdown(report)
