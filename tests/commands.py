"""Console scripts and scripts of Python, run as a user runs them."""

import contextlib
import importlib
import io
import os
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

SCRIPTS = Path(sysconfig.get_path("scripts"))
COMMAND = SCRIPTS / "parity"


def run(*words, cwd=None, **variables):
    """Run a command in a folder, with more variables of the environment."""
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=cwd, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


parity = partial(run, COMMAND)
jaxvae = partial(run, SCRIPTS / "jaxvae")


def here(*words):
    """Run a command in this process, through its entry point."""
    out, err, code, argv, path = io.StringIO(), io.StringIO(), 0, sys.argv, list(sys.path)
    sys.argv = list(map(str, words))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            importlib.import_module(f"{words[0]}.cli").main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv, sys.path[:] = argv, path
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def python(*words, devices=0, **options):
    """Return what Python prints in a process of its own, which may have several devices."""
    if devices:
        flags = os.environ.get("XLA_FLAGS", "")
        options["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
    done = run(sys.executable, *words, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def refused(done, *parts):
    """Return the last line of standard error, after checking that it says these."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    for part in parts:
        assert part in last
    return last
