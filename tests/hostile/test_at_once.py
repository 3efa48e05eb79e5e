"""Two comparisons at once are refused; many of them one after another need no more memory."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parity.core.exceptions import InputError
from parity.host.memory import resident_memory
from tests.hostile import models

BUSY = "another comparison is running in this process; run them one by one"


def placed(side, special):
    """A pair of which this side runs the function."""
    plain = lambda self, x: self.a(x)  # noqa: E731
    return models.around(*((special, plain) if side == "reference" else (plain, special)))


@pytest.mark.parametrize("side", ["reference", "port"])
def test_on_two_threads(side):
    """The second is refused whatever the first does at that moment, and the first goes on."""
    entered, end = threading.Event(), threading.Event()
    found = []

    def wait(self, x):
        entered.set()
        end.wait(60)
        return self.a(x)

    made = placed(side, wait)
    first = threading.Thread(target=lambda: found.append(made.report()))
    first.start()
    assert entered.wait(60)
    try:
        with pytest.raises(InputError, match=BUSY):
            models.linear_pair().report()
    finally:
        end.set()
        first.join()
    assert [report.verdict for report in found] == ["PASS"]
    assert models.linear_pair().report().verdict == "PASS"


@pytest.mark.parametrize("side", ["reference", "port"])
def test_one_inside_of_the_other(side):
    def nested(self, x):
        models.linear_pair().report()
        return self.a(x)

    with pytest.raises(InputError, match=BUSY):
        placed(side, nested).report()
    assert models.linear_pair().report().verdict == "PASS"


@pytest.mark.slow
def test_500_comparisons_need_no_more_memory():
    """What JAX keeps of programs is there after some; from then on nothing grows."""
    for _ in range(50):
        assert models.linear_pair().report().verdict == "PASS"
    gc.collect()
    before = resident_memory()
    for _ in range(500):
        assert models.linear_pair().report().verdict == "PASS"
    gc.collect()
    assert resident_memory() < 1.05 * before


LIMITED = """
import resource, sys
from dataclasses import replace
from pathlib import Path
import conftest
from tests.hostile import corpus, stock
from tests.hostile.case import run
folder = Path(sys.argv[1])
(folder / "stock").mkdir()
stock.fill(folder / "stock")
bad = []
for i, case in enumerate(corpus.CASES):
    def make(home, make=case.make):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        make(home)  # to write a large video takes more than to refuse it
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), resource.RLIM_INFINITY))
    outcome = run(replace(case, make=make), folder / "stock", folder / str(i))
    bad += [outcome] if outcome.problems else []
for one in bad:
    print(one.case.kind, one.case.name, one.problems)
sys.exit(bool(bad))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and a limit that is kept")
def test_the_corpus_within_2_gib_of_addresses(tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, cwd=root,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
