"""`parity record` and `parity check`, the latter where torch is not installed."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import commands
from tests.commands import COMMAND, here, refused
from tests.hidden import without

HERE = Path(__file__).parent
PATH = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
WITH_TORCH = {"PYTHONPATH": PATH}
WITHOUT_TORCH = without("torch", "diffusers", path=str(HERE.parents[1]))
run = partial(commands.run, cwd=HERE)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    done = run(COMMAND, "record", "tiny:PAIR", "--out", folder, **WITH_TORCH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 cases, ")
    return folder


def test_the_situation_is_what_it_says():
    done = run(sys.executable, "-c", "import torch", **WITHOUT_TORCH)
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_a_wrong_port_fails_without_torch(trace, tmp_path):
    words = ("check", trace, "--pair", "tiny:WRONG", "--emulate", "bf16", "--out", tmp_path)
    done = run(COMMAND, *words, **WITHOUT_TORCH)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    faults = [line.split() for line in done.stdout.splitlines() if line.startswith("  where ")]
    assert [words[1] for words in faults] == ["stem", "block", "<root>"]
    tables = {"layers.csv", "conv.csv", "net.csv", "weights.csv"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == tables | {"report.json", "report.md", "report.html", "junit.xml"}
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["emulations"]
    assert report["environment"]["versions"]["jax"]
    assert report["environment"]["recorded"]["versions"]["torch"]


def test_a_right_port_passes_and_json_is_all_that_is_printed(trace, tmp_path):
    done = here("parity", "check", trace, "--pair", "tiny:PAIR", "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "report.json").read_text()
    assert json.loads(done.stdout)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["check", "."], "trace.json: no such file; give the folder that `parity record` wrote"),
        (["check", ".", "--pair", "nonsense"], "no pair 'nonsense'"),
        (["record", "cogvideox", "--weights", "x", "--config", "small"], "leave --config out"),
        (["record", "--weights", "x"], "--weights: options of a pair come after its name"),
    ],
)
def test_bad_input(words, part, tmp_path):
    refused(run(COMMAND, *words, "--out", tmp_path / "out", **WITH_TORCH), part)


def test_two_traces_are_compared_without_torch(trace, tmp_path):
    done = run(COMMAND, "compare", trace, trace, "--out", tmp_path / "out", **WITHOUT_TORCH)
    assert (done.returncode, done.stderr) == (0, "")
    name = trace.name
    assert f"{name} against {name}: PASS" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file()


def test_two_traces_in_other_words(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = here("parity", "compare", trace, trace, "--json")
    written = tmp_path / "reports" / f"{trace.name}-{trace.name}" / "report.json"
    assert (done.returncode, done.stdout) == (0, written.read_text())
    done = here("parity", "compare", trace, trace, "--quiet")
    assert (done.returncode, done.stdout) == (0, f"{trace.name} against {trace.name}: PASS\n")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["TRACE"], "found one trace, expected MODULE:FUNCTION, or two folders"),
        (["TRACE", "TRACE", "TRACE"], "found 3 names, expected MODULE:FUNCTION, or two folders"),
        (["TRACE", "gone"], "gone: no trace.json in it"),
        (["TRACE", "TRACE", "--device", "cpu"], "--device: nothing runs when two traces"),
        (["TRACE", "TRACE", "--seed", "0"], "--seed: nothing runs"),
        (["TRACE", "TRACE", "--depth", "0"], "--depth: nothing runs"),
        (["TRACE", "TRACE", "--only", "x"], "--only: nothing runs"),
        (["TRACE", "TRACE", "--emulate", "bf16"], "--emulate: nothing runs"),
        (["TRACE", "TRACE", "--eager"], "--eager: nothing runs"),
        (["TRACE", "TRACE", "--repro", "x"], "--repro: nothing runs"),
    ],
)
def test_two_traces_wrongly(trace, words, part):
    refused(here("parity", "compare", *(trace if x == "TRACE" else x for x in words)), part)


def test_record_prints_what_was_asked_for(tmp_path):
    """A part, in the words of `run`."""
    words = ("parity", "record", "tiny:PAIR", "--only", "stem", "--only", "head", "--out")
    said = json.loads(here(*words, tmp_path, "--json").stdout)
    assert (said["folder"], said["cases"]) == (str(tmp_path), 1)
    assert said["nbytes"] > 1000
    done = here(*words, tmp_path / "again", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written["only"] == ["stem", "head"]


@pytest.mark.slow
def test_cogvideox_in_the_small_configuration(tmp_path):
    """What a check says is what a run says, to the digit but for R."""
    import numpy as np
    import pandas as pd

    asked = ("--config", "small", "--size", "32x32")
    for words, env in (
        (("record", "cogvideox", *asked, "--out", tmp_path / "trace"), WITH_TORCH),
        (("check", tmp_path / "trace", "--out", tmp_path / "check"), WITHOUT_TORCH),
        (("run", "cogvideox", *asked, "--out", tmp_path / "run"), WITH_TORCH),
    ):
        done = run(COMMAND, *words, **env)
        assert done.returncode == 0, done.stderr
    ours, theirs = (pd.read_csv(tmp_path / name / "layers.csv") for name in ("check", "run"))
    about = ["floor_rel_l2", "R"]
    pd.testing.assert_frame_equal(
        ours.drop(columns=about), theirs.drop(columns=about), check_exact=True
    )
    np.testing.assert_allclose(ours[about], theirs[about], rtol=1e-5)
