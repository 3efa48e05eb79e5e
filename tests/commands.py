"""The console script `parity`, run as a user runs it."""

import os
import subprocess
import sysconfig
from pathlib import Path

COMMAND = Path(sysconfig.get_path("scripts")) / "parity"


def parity(*words, cwd=None, **variables):
    """Run the command in a folder, with more variables of the environment."""
    return subprocess.run(
        [COMMAND, *map(str, words)], capture_output=True, text=True, cwd=cwd, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


def refused(done, *parts):
    """Return the last line of standard error, after checking that it says these."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    for part in parts:
        assert part in last
    return last
