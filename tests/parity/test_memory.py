"""The stage that needs most memory, in a process of its own: peaks of other tests would hide it."""

import subprocess
import sys

SCRIPT = """
from parity.progress import Progress
progress = Progress()
progress.title("case")
progress.stage("small")
small = bytearray(b"x") * (40 << 20)
progress.stage("large")
large = bytearray(b"x") * (200 << 20)
del large
progress.stage("smaller than what was held before")
again = bytearray(b"x") * (100 << 20)
largest = progress.largest()
print(largest.name, largest.rise >> 20, sep="|")
"""


def test_the_stage_that_set_the_peak_and_how_far_it_rose():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    name, rise = run.stdout.strip().split("|")
    assert name == "case: large"
    assert 195 <= int(rise) <= 215
