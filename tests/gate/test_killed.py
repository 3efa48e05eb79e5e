"""A run that is killed leaves the files of the run before as they were."""

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import COMMAND

HERE = Path(__file__).parent

WRITER = """
import itertools, sys
from pathlib import Path
from parity.core.files import write_all
for turn in itertools.count():
    write_all(Path(sys.argv[1]), {name: f"{turn}\\n" * 200_000 for name in "abc"})
"""


def hashes(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def test_files_are_whole_whenever_the_writer_is_killed(tmp_path):
    draw = random.Random(0)
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path]) as writer:
            while not (tmp_path / "c").exists():
                time.sleep(0.01)
            time.sleep(draw.uniform(0.2, 0.6))
            writer.send_signal(signal.SIGKILL)
        for name in "abc":
            lines = (tmp_path / name).read_text().splitlines()
            assert len(lines) == 200_000
            assert len(set(lines)) == 1


@pytest.mark.slow
def test_a_report_survives_runs_killed_at_random_moments(tmp_path, tmp_path_factory):
    words = [COMMAND, "run", "mutants:POOLING", "--config", "small", "--out", tmp_path]
    start = time.monotonic()
    subprocess.run(words, cwd=HERE, check=False, capture_output=True)
    length = time.monotonic() - start
    before = hashes(tmp_path)
    assert "layers.csv" in before
    draw = random.Random(1)
    said, killed = tmp_path_factory.mktemp("said") / "stdout", 0
    while killed < 20:
        with said.open("w") as out, subprocess.Popen(words, cwd=HERE, stdout=out, stderr=-3) as run:
            time.sleep(draw.uniform(0, 0.9 * length))
            run.send_signal(signal.SIGKILL)
        if said.read_text():  # it was faster than the first one: the table comes after the files
            before, length = hashes(tmp_path), 0.9 * length
            continue
        killed += 1
        assert hashes(tmp_path) == before
