"""`parity show`, `diff` and `env`, and what `run` prints, through the console script."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import parity, refused


@pytest.fixture(scope="module")
def folders(report, tmp_path_factory):
    """A failing report, and one in which nothing fails."""
    folder = tmp_path_factory.mktemp("reports")
    rows = tuple(replace(row, verdict="PASS", reason="") for row in report.rows)
    right = tuple(
        replace(row, exclusive=replace(row.exclusive, mae=0.0, rel_l2=1e-7, r=1.0)) for row in rows
    )
    report.write(folder / "wrong")
    replace(report, rows=right, faults=(), weights=()).write(folder / "right")
    seed = {**report.environment, "seed": 7}
    replace(report, rows=right, faults=(), weights=(), environment=seed).write(folder / "seed 7")
    return folder


def test_show(folders):
    done = parity("show", "wrong", "--depth", 1, cwd=folders)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "├─ stem" in done.stdout
    assert done.stdout.endswith("TorchNet against NnxNet: FAIL\n")
    refused(parity("show", "gone", cwd=folders), "parity: gone: no such file; give a report.json")
    refused(parity("show", "wrong", "--only", "stm", cwd=folders), "did you mean 'stem'?")
    refused(parity("show", "wrong/layers.csv", cwd=folders), "wrong/layers.csv: no JSON")
    refused(parity("show", "wrong", "--depth", -1, cwd=folders), "--depth")


def test_colours_are_left_out_on_request(folders):
    words, terminal = ("show", "wrong"), {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    colour = re.compile(r"\x1b\[([0-9]+;)*[349][0-7]m")
    assert colour.search(parity(*words, cwd=folders, **terminal).stdout)
    assert not colour.search(parity(*words, cwd=folders, **terminal, NO_COLOR="1").stdout)
    assert "\x1b" not in parity(*words, cwd=folders).stdout


def test_diff_and_its_ratchet(folders):
    done = parity("diff", "right", "wrong/report.json", cwd=folders)
    assert done.returncode == 0, done.stderr
    assert re.search(r"worse +stem call 0 of __call__ +R ", done.stdout)
    assert "verdict PASS, then FAIL" in done.stdout
    done = parity("diff", "right", "wrong", "--fail-if-worse", "2x", "--json", cwd=folders)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["changes"][0]["path"] == "stem"
    assert document["holds"] is False
    done = parity("diff", "wrong", "right", "--fail-if-worse", "2", cwd=folders)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("ratchet 2x: holds\n")
    done = parity("diff", "right", "wrong", "--html", "new/diff.html", cwd=folders)
    assert done.stdout.endswith("page: new/diff.html\n")
    assert "stem call 0 of __call__" in (folders / "new/diff.html").read_text("utf-8")
    assert [path.name for path in (folders / "new").iterdir()] == ["diff.html"]
    (folders / "file").touch()
    refused(parity("diff", "right", "wrong", "--html", "file/x", cwd=folders), "cannot be written")
    for factor in ("x", "0.5x", "nan", "inf"):
        words = ("diff", "right", "wrong", "--fail-if-worse", factor)
        refused(parity(*words, cwd=folders), "is not a factor of at least 1, as in 2x")
    refused(parity("diff", "right", "gone", cwd=folders), "gone: no such file")
    words = ("diff", "right", "seed 7", "--fail-if-worse", "2x")
    refused(parity(*words, cwd=folders), "right and seed 7 are of other inputs (seed: 0, then 7)")


def test_run_prints_the_report_as_json_and_nothing_else(tmp_path):
    root = Path(__file__).parents[2]
    words = ("run", "tests.parity.test_emulation:TINY", "--out", "out", "--json")
    done = parity(*words, cwd=tmp_path, PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "out/report.json").read_text()
    assert json.loads(done.stdout)["verdict"] == "PASS"
    assert len(done.stderr.splitlines()) == 1  # the precision; no progress
    assert (tmp_path / "out/junit.xml").exists()


def test_env():
    done = parity("env", "--json", XLA_FLAGS="--xla_cpu_enable_fast_math=false")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["jax"]
    assert found["jax_effective_precision"] == found["torch_effective_precision"] == "float32"
    assert found["variables"]["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"


def test_env_as_a_block():
    from click.testing import CliRunner

    from parity.cli import cli

    done = CliRunner().invoke(cli, ["env"])
    assert done.exit_code == 0, done.output
    block = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert block["versions.torch"].startswith("2.")
    assert block["jax_default_matmul_precision"] == "None"
    assert {"python", "platform", "cores", "jax_device", "torch_device"} <= set(block)


def test_history_over_commits(folders, tmp_path):
    refused(parity("history", "kept", cwd=tmp_path), "kept: holds no reports; add one with --add")
    words = ("history", tmp_path / "kept", "--fail-if-worse", "2x", "--add")
    refused(parity(*words, "wrong/layers.csv", cwd=folders), "wrong/layers.csv: no JSON")
    assert not (tmp_path / "kept").exists()
    first = parity(*words, "wrong", cwd=folders)
    assert first.returncode == 1
    assert "no report of these inputs passed before: FAIL" in first.stdout
    for again in range(2):
        assert parity(*words, "right", cwd=folders).returncode == 0, again
    other = parity(*words, "seed 7", cwd=folders)  # passes by itself; nothing to compare it with
    assert other.returncode == 0, other.stdout
    worse = parity(*words, "wrong", "--json", cwd=folders)
    assert worse.returncode == 1
    document = json.loads(worse.stdout)
    verdicts = [report["verdict"] for report in document["reports"]]
    assert verdicts == ["FAIL", "PASS", "PASS", "PASS", "FAIL"]
    assert document["last_good"] == 3
    shown = parity("history", tmp_path / "kept", "--only", "stem", cwd=folders)
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines() if "PASS" in line or "FAIL" in line]
    assert [line[0] for line in lines] == ["1", "2", "3", "4", "5"]
    assert float(lines[0][2]) > 10 > float(lines[1][2])
    refused(parity("history", tmp_path / "kept", "--only", "stm"), "did you mean 'stem'?")
