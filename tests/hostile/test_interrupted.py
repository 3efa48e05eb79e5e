"""Ctrl-C at any moment: hooks are gone, classes as they were, files and old reports intact."""

import gc
import os
import random
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core import lock
from parity.host import environment
from tests.commands import COMMAND
from tests.hostile import models
from tests.hostile.case import hooks_of, left_behind
from tests.hostile.makers import MAKER


def chain():
    """Several layers: a comparison of some tenths of a second."""

    def call(self, x):
        for name in ("a", "b", "c", "d"):
            x = getattr(self, name)(x)
        return x

    parts = {name: models.linear() for name in "abcd"}
    return models.compared(
        models.torch_of(call, **{name: pair[0] for name, pair in parts.items()}),
        models.nnx_of(call, **{name: pair[1] for name, pair in parts.items()}),
    )


def state_of(made):
    """All that a comparison might leave changed."""
    tensors = {name: value.clone() for name, value in made.torch_module.state_dict().items()}
    variables = {str(path): np.asarray(value) for path, value in nnx.to_flat_state(
        nnx.state(made.nnx_module))}  # fmt: skip
    return tensors, variables, {id(type(m)): type(m).__call__ for _, m in nnx.iter_modules(
        made.nnx_module)}  # fmt: skip


def same(one, other):
    return (
        all(torch.equal(value, other[0][name]) for name, value in one[0].items())
        and all(np.array_equal(value, other[1][name]) for name, value in one[1].items())
        and one[2] == other[2]
    )


def interrupted_after(seconds, made, folder):
    """Compare and write, and have Ctrl-C arrive in the main thread; whether it came in time."""
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()  # it may come before this returns
        made.report().to_json(folder / "report.json")
        timer.join()  # it comes now, if it was late
        time.sleep(0.01)
    except KeyboardInterrupt:
        return True
    finally:
        timer.cancel()
        timer.join()
    return False


@pytest.fixture(autouse=True)
def interruptible():
    """A shell starts what it has in the background with interrupts ignored, and an interrupt that
    arrives in a callback of the garbage collector is lost, as Python has it.
    """
    before, callbacks = signal.signal(signal.SIGINT, signal.default_int_handler), gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGINT, before)


def files_of(folder):
    """The names of a report's files, without a folder of files that were never moved."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".writing-")}


def check_interruptions(times, folder):
    made = chain()
    made.report().to_json(folder / "report.json")
    start = time.monotonic()
    wanted = made.report()
    wanted.to_json(folder / "report.json")
    length = time.monotonic() - start
    names = files_of(folder)
    hooks, before, draw, hit = hooks_of(made), state_of(made), random.Random(0), 0
    for _ in range(times):
        hit += interrupted_after(draw.uniform(0, length), made, folder)
        assert left_behind(made, hooks) == []
        assert same(before, state_of(made))
        assert not lock.RUNNING
        assert files_of(folder) == names
        assert parity.Report.from_json(folder).table.equals(wanted.table)
    assert hit > times / 2
    assert made.report().table.equals(wanted.table)


def test_ctrl_c_leaves_models_and_reports_as_they_were(tmp_path):
    check_interruptions(4, tmp_path)


@pytest.mark.slow
def test_ctrl_c_at_50_moments(tmp_path):
    check_interruptions(50, tmp_path)


INTERRUPTS = """#!/bin/sh
[ -e "{0}" ] || { echo $$ >"{0}"; kill -INT $PPID; exec sleep 0.5; }
"""


@pytest.mark.parametrize("late", [0, 0.3], ids=["", "as a thread starts"])
def test_an_interrupt_leaves_no_process_that_nobody_waits_for(late, tmp_path, monkeypatch):
    """It arrives while git runs, which goes on longer than `subprocess.run` waits for it."""
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (start(self), time.sleep(late))[0])
    started, git = tmp_path / "started", tmp_path / "git"
    git.write_text(INTERRUPTS.replace("{0}", str(started)))
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    environment.commit.cache_clear()
    with pytest.raises(KeyboardInterrupt):
        environment.describe(0, ("jax",))
    environment.commit.cache_clear()  # what this git said
    with pytest.raises(ChildProcessError):  # no such child: it has ended and was waited for
        os.waitpid(int(started.read_text()), os.WNOHANG)


ENDS_BADLY = """
import ctypes, tempfile
import jax.numpy as jnp

ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)  # as threads of XLA may, at the exit
HELD = tempfile.TemporaryDirectory(dir=".")

def interrupted():
    jnp.ones(3).block_until_ready()
    raise KeyboardInterrupt
"""


def test_an_interrupt_leaves_before_the_interpreter_ends(tmp_path):
    (tmp_path / "maker.py").write_text(ENDS_BADLY)
    words = [COMMAND, "compare", "maker:interrupted", "--out", "out"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.strip()) == (130, "parity: interrupted")
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {"__pycache__"} == {"maker.py", "out"}
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_a_command_that_is_interrupted_leaves_the_old_report(tmp_path):
    (tmp_path / "maker.py").write_text(MAKER)
    words = [COMMAND, "compare", "maker:good", "--out", "out"]
    start = time.monotonic()
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    length = time.monotonic() - start
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    draw, scratch, said = random.Random(0), tmp_path / "scratch", 0
    scratch.mkdir()
    for _ in range(10):
        with subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        ) as run:  # fmt: skip
            time.sleep(draw.uniform(0.05, length))
            run.send_signal(signal.SIGINT)
            _, error = run.communicate(timeout=120)
        if run.returncode == 130:
            said += 1
            assert error.strip().splitlines()[-1] == "parity: interrupted"
        found = {path.name: path for path in (tmp_path / "out").iterdir()}
        assert found.keys() == before.keys()
        assert all(path.stat().st_size for path in found.values())
        assert list(scratch.iterdir()) == []
    assert said
