"""Profiles of runs: a file that names the modules that were called."""

import contextlib

import numpy as np
import pytest
from click.testing import CliRunner
from flax import nnx

from parity.capture.nnx import record
from parity.capture.recorder import Subtree
from parity.cli import cli
from parity.core.exceptions import InputError
from parity.core.store import Store
from parity.host.profile import profiled
from tests.ports import nnx_of


def test_the_calls_of_a_recorded_run_have_the_paths_of_their_modules(tmp_path):
    layers = nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(2)])
    net = nnx_of(lambda self, x: self.layers[1](self.layers[0](x)), layers=layers)
    x = np.ones((1, 2), np.float32)
    with profiled(tmp_path), Store() as store:
        record(net, "__call__", (x,), {}, store=store, subtree=Subtree("net"))
    (found,) = tmp_path.rglob("*.xplane.pb")
    text = found.read_bytes()
    assert b"net.layers.0" in text
    assert b"net.layers.1" in text


@pytest.mark.parametrize(
    "words",
    [
        ("run", "cogvideox", "--config", "gone.json"),
        ("selftest", "cogvideox", "--only", "no such mistake"),
    ],
)
def test_both_commands_profile_what_they_run(tmp_path, words):
    """Also a run that breaks off: here at once, which takes no time."""
    options = ["--profile", str(tmp_path / "profile"), "--out", str(tmp_path / "out")]
    with contextlib.suppress(InputError):
        CliRunner().invoke(cli, [*words, *options], catch_exceptions=False)
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1


def test_no_folder_no_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with profiled(None):
        pass
    assert list(tmp_path.iterdir()) == []
