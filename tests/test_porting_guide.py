"""Every pitfall of docs/porting-guide.md is made on purpose somewhere, and found for what it is."""

import re
from pathlib import Path

import pytest

from jaxvae.pairs.cogvideox import mistakes
from tests.faultzoo.zoo import CASES

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "porting-guide.md").read_text()
ROWS = [re.split(r" *\| *", line)[1:-1] for line in GUIDE.splitlines() if line.startswith("| ")]
ROWS = [cells for cells in ROWS if cells[-1] != "shown by"]
KNOWN = {case.name: (case.cause,) for case in CASES} | {
    wrong.name: wrong.causes for wrong in mistakes.MISTAKES
}


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: cells[-1])
def test_it_is_shown(cells):
    shown = cells[-1].strip("`")
    if "::" not in shown:
        cause = cells[1].strip("`")
        assert cause in KNOWN[shown]
        return
    path, test = shown.partition("[")[0].split("::")
    assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.M)


def test_the_guide_has_the_whole_zoo():
    missing = [case.name for case in CASES if f"`{case.name}`" not in GUIDE]
    assert not missing
