"""`parity record` and `parity check`, the latter where torch is not installed."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from parity.cli import main

COMMAND = Path(sysconfig.get_path("scripts")) / "parity"
HERE = Path(__file__).parent
WITHOUT_TORCH = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(HERE / "without_torch"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
}


def run(*words, env=None):
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=HERE, check=False, env=env
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    words = ("record", "tiny:PAIR", "--frames", 1, "--size", "8x8", "--out", folder)
    done = run(COMMAND, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 cases, ")
    return folder


def test_the_situation_is_what_it_says():
    done = run(sys.executable, "-c", "import torch", env=WITHOUT_TORCH)
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_a_wrong_port_fails_without_torch(trace, tmp_path):
    words = ("check", trace, "--pair", "tiny:WRONG", "--emulate", "bf16", "--out", tmp_path)
    done = run(COMMAND, *words, env=WITHOUT_TORCH)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    faults = [line for line in done.stdout.splitlines() if line.startswith("fault: ")]
    assert [line.split()[1] for line in faults] == ["stem", "block", "<root>"]
    tables = {"layers.csv", "conv.csv", "net.csv", "weights.csv"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == tables | {"report.json", "report.md", "report.html", "junit.xml"}
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["emulations"]
    assert report["environment"]["versions"]["jax"]
    assert report["environment"]["recorded"]["versions"]["torch"]


def test_a_right_port_passes_and_json_is_all_that_is_printed(trace, tmp_path, monkeypatch, capsys):
    words = ["parity", "check", str(trace), "--pair", "tiny:PAIR", "--out", str(tmp_path), "--json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "report.json").read_text()
    assert json.loads(printed)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["check", "."], "trace.json: cannot be read (No such file or directory)"),
        (["check", ".", "--pair", "nonsense"], "no pair 'nonsense'"),
        (["record", "--weights", "x", "--config", "small"], "leave --config out"),
        (["record", "--shard-size", "0"], "--shard-size"),
    ],
)
def test_bad_input(words, part, tmp_path):
    done = run(COMMAND, *words, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert part in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_cogvideox_in_the_small_configuration(tmp_path):
    """What a check says is what a run says, to the digit but for R."""
    import numpy as np
    import pandas as pd

    asked = ("--config", "small", "--size", "32x32")
    for words, env in (
        (("record", *asked, "--out", tmp_path / "trace"), None),
        (("check", tmp_path / "trace", "--out", tmp_path / "check"), WITHOUT_TORCH),
        (("run", *asked, "--out", tmp_path / "run"), None),
    ):
        done = run(COMMAND, *words, env=env)
        assert done.returncode == 0, done.stderr
    ours, theirs = (pd.read_csv(tmp_path / name / "layers.csv") for name in ("check", "run"))
    about = ["floor_rel_l2", "R"]
    pd.testing.assert_frame_equal(
        ours.drop(columns=about), theirs.drop(columns=about), check_exact=True
    )
    np.testing.assert_allclose(ours[about], theirs[about], rtol=1e-5)
