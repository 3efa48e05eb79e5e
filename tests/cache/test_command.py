"""`parity compare --cache` from the shell, with an edit of the port between two runs."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.core.exceptions import InputError

COMMAND = Path(sysconfig.get_path("scripts")) / "parity"

REFERENCE = """
import torch


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 5)

    def forward(self, x):
        print("the reference runs")
        return self.second(torch.tanh(self.first(x)))
"""

PORT = """
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from theirs import Reference

FACTOR = 1.0


class Port(nnx.Module):
    def __init__(self):
        self.first = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.second = nnx.Linear(4, 5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)) * FACTOR)


def make():
    reference, port = Reference().eval(), Port()
    for name in ("first", "second"):
        ours, theirs = getattr(port, name), getattr(reference, name)
        ours.kernel[...] = jnp.asarray(theirs.weight.detach().numpy().T)
        ours.bias[...] = jnp.asarray(theirs.bias.detach().numpy())
    return reference, port, (np.ones((2, 3), np.float32) * np.arange(3, dtype=np.float32),)
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "theirs.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(PORT)
    return tmp_path


def start(home, name, *words, stderr=subprocess.PIPE, **environment):
    return subprocess.Popen(
        [COMMAND, "compare", f"{name}:make", "--cache", *words], stdout=subprocess.PIPE,
        stderr=stderr, text=True, cwd=home, env={**os.environ, **environment},
    )  # fmt: skip


@contextmanager
def terminal():
    """A terminal to write to, and what it showed in the end."""
    ours, theirs = pty.openpty()
    shown = []

    def read():
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 4096):
                shown.append(chunk.decode(errors="replace"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, shown
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def ended(process):
    out, err = process.communicate()
    return process.returncode, out, err


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.slow
def test_an_edit_of_the_port_does_not_run_the_reference(home, cache):
    both = [
        start(home, "ours", "--out", name) for name in ("one", "two")
    ]  # at once, and none was first
    done = [ended(process) for process in both]
    for code, out, err in done:
        assert code == 0, err
        assert re.search("- the reference: (recorded now|from the cache, recorded .*), key ", out)
        assert "Reference against Port: PASS" in out
        assert err == ""  # no terminal, no progress
    ran = [out.count("the reference runs") for _, out, _ in done]
    assert max(ran) == 2  # in float32 and in float64; the slower one may have found what was there
    (entry,) = cache.iterdir()
    shutil.copy(home / "ours.py", home / "wrong.py")
    edit(home / "ours.py", "* FACTOR", "* (FACTOR + 1) / 2")
    edit(home / "wrong.py", "* FACTOR", "* FACTOR * 1.01")
    right = start(home, "ours", "--json")
    with terminal() as (stderr, shown):
        of_wrong = ended(start(home, "wrong", "--out", "wrong", stderr=stderr))
    code, out, err = ended(right)
    assert code == 0, err
    report = json.loads(out)  # and nothing else: the reference did not run
    assert report["facts"]["reference"].startswith("from the cache, recorded 20")
    assert report["facts"]["reference"].endswith(f"key {entry.name[:12]}")
    before = json.loads((home / "one" / "report.json").read_text())
    assert [report[name] for name in ("rows", "faults", "verdict")] == [
        before[name] for name in ("rows", "faults", "verdict")
    ]
    code, out, _ = of_wrong
    assert code == 1, shown
    assert "diagnosis" in "".join(shown)  # progress, where there is a terminal
    assert " so far" in "".join(shown)
    assert "- the reference: from the cache, recorded 20" in out
    assert "fault: <root> (Reference), call 0 of __call__, between `first` and" in out


def test_a_folder_that_cannot_be_used(home, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    code, out, err = ended(start(home, "ours", "--quiet", PARITY_CACHE_DIR=str(tmp_path / "open")))
    assert (code, out) == (2, "")
    assert err.startswith(f"parity: {tmp_path / 'open'}: has mode 777 and owner ")
    assert len(err.splitlines()) == 1


def test_the_option(home, monkeypatch):
    """In this process; the others start some."""
    monkeypatch.syspath_prepend(str(home))
    words = ["compare", "ours:make", "--cache", "--json", "--out", str(home / "out")]
    told = []
    for _ in range(2):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
        told.append(done.stdout)
    for name in ("ours", "theirs"):
        sys.modules.pop(name)
    assert "the reference runs" in told[0]
    assert "recorded now" in told[0]
    assert json.loads(told[1])["facts"]["reference"].startswith("from the cache, recorded 20")


@pytest.mark.slow
def test_a_ladder(home, cache):
    words = ["run", "tests.cache.nets:PAIR", "--cache", "--frames", "1", "--size", "8x8", "--only",
             "head", "--json", "--out", str(home / "out")]  # fmt: skip
    told = []
    for _ in range(2):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
        told.append(json.loads(done.stdout)["facts"]["reference"])
    assert told[0].startswith("recorded now")
    assert told[1].startswith("from the cache, recorded 20")
    cache.chmod(0o770)
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, InputError)
    assert "chmod 700" in str(done.exception)
