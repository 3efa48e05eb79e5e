"""A registered pair takes nothing from the folder that a command is run in."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parity.traces import index

PARITY = str(Path(sys.executable).with_name("parity"))
NAMES = ("jax", "flax", "numpy", "diffusers", "torch", "safetensors", "jaxvae", "parity", "rich")


@pytest.fixture
def folder(tmp_path):
    """A folder with modules that take the place of those that a pair imports."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)\n")
    return tmp_path


def run(folder, *words):
    return subprocess.run([PARITY, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["run", "record"])
@pytest.mark.parametrize("pair", ["cogvideox", "kl"])
def test_a_registered_pair(folder, command, pair):
    done = run(folder, command, pair, "--size", "nonsense")
    assert (done.returncode, "--size" in done.stderr) == (2, True), done.stderr
    assert not list(folder.glob("**/__pycache__"))


def test_the_pair_of_a_trace(good, folder):
    shutil.copytree(good / "trace", folder / "trace")
    path = folder / "trace/trace.json"
    made = json.loads(path.read_text()) | {"pair": "kl"}
    del made["sha256"]
    path.write_text(json.dumps({"sha256": index.signature(made)} | made))
    done = run(folder, "check", "trace", "--quiet")
    assert done.returncode == 2, done.stderr
    assert "Offline.methods" in done.stderr or "layout" in done.stderr
    assert not list(folder.glob("**/__pycache__"))
