"""The limits on R against the measurements that docs/thresholds.md records."""

from pathlib import Path

import parity
from parity.limits import TABLE, r_limit
from tools.measure_r import CORRECT, of_leaf

DOCUMENT = (Path(parity.__file__).parents[1] / "docs/thresholds.md").read_text()
LIMITS = {line.family: line for line in TABLE}


def measured(heading):
    """The cells of the table under a heading, numbers as floats."""
    lines = DOCUMENT.split(f"## {heading}")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_limit_is_documented():
    assert all(line.as_markdown() in DOCUMENT for line in TABLE)


def test_the_limits_lie_between_what_is_right_and_what_is_wrong():
    correct = measured("Correct modules")
    assert {row[0] for row in correct} == set(CORRECT)
    for name, family, _, largest in correct:
        assert float(largest) < LIMITS[family].fail / 2, name
    zoo = measured("Fault zoo")
    assert len(zoo) >= 20
    for name, norms, others, fault, family in zoo:
        for own, healthy in (("norm", norms), ("other", others)):
            assert not healthy or float(healthy) < LIMITS[own].warn, name
        assert float(fault) > 3 * LIMITS[family].fail, name


def test_the_class_name_decides():
    assert r_limit("CogVideoXSpatialNorm3D").family == "norm"
    assert r_limit("BatchNorm2d").fail == 30
    assert r_limit("Conv2d").fail == 10
    assert r_limit("NormalizedAttention").fail == 10


def test_a_measurement_is_repeated():
    name = "GroupNorm, mean/std 1000"
    largest = float(next(row[3] for row in measured("Correct modules") if row[0] == name))
    assert 1 < of_leaf(CORRECT[name], 0) < 1.5 * largest
