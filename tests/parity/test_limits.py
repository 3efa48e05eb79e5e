"""The limits on R against the measurements that docs/thresholds.md records."""

import re
from pathlib import Path

import numpy as np
import pytest

import parity
from parity.core.limits import TABLE, r_limit
from parity.core.metrics import rms, unit_roundoff
from parity.measure.noise import LONG, of_sum
from parity.options.options import MODES
from tests.faultzoo import zoo
from tools import measure_r
from tools.measure_r import CORRECT, of_leaf, table_of

ROOT = Path(parity.__file__).parents[1]
DOCUMENT = (ROOT / "docs/thresholds.md").read_text()
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


def test_reasons_are_those_of_the_tables():
    """The words beside the limits: each figure is the largest or smallest of its table."""
    correct = {name: float(largest) for name, _, _, largest in measured("Correct modules")}
    zoo = {name: row for name, *row in measured("Fault zoo")}
    faults = {name: float(fault) for name, (_, _, fault, _) in zoo.items()}
    others = [name for name in correct if r_limit(name.partition(",")[0]).family == "other"]
    assert round(max(correct.values())) == 12
    assert max(correct[name] for name in others) < 1
    assert max(float(row[1]) for row in zoo.values()) < 3
    assert min(faults.values()) == faults["variance_in_one_pass"] == 300
    assert round(faults["products_in_bfloat16"], -3) == 5000
    for figure in (" reaches 12,", " starts at 300", " below 1,", " below 3;", " at 5000"):
        assert figure in DOCUMENT


def test_the_reference_gets_its_arrays_as_users_have_them():
    """Channels last in memory PyTorch's gradient of this group norm is off by a tenth: then R says
    nothing, and a port that is as bad passes. A rounding of a mean of 1000 is 6e-5."""
    found = table_of(CORRECT["GroupNorm, mean/std 1000"], 0, ("grad",))
    assert found.floor_rel_l2.max() < 100 * 6e-5
    assert set(found.verdict) == {"PASS"}


def check_module(name, modes, seeds):
    """A correct module does not fail, on whatever processor."""
    found = [of_leaf(CORRECT[name], seed, modes) for seed in range(seeds)]
    assert max(found) < r_limit(name.partition(",")[0]).fail


@pytest.mark.slow
@pytest.mark.parametrize("modes", [MODES, ("grad",)], ids=["outputs", "gradients"])
@pytest.mark.parametrize("name", CORRECT)
def test_correct_modules_are_within_the_limits(name, modes):
    check_module(name, modes, 3)


@pytest.mark.parametrize(
    ("modes", "names"),
    [
        (MODES, (
            "Conv2d", "Conv3d", "Linear", "Attention", "SiLU", "Tanh", "GroupNorm, mean/std 30",
            "GroupNorm, mean/std 1000", "LayerNorm, mean/std 1000",
            "InstanceNorm2d, mean/std 10000",
        )),
        (("grad",), ("Conv3d", "Linear", "GELU", "LayerNorm, mean/std 30")),
    ],
    ids=["outputs", "gradients"],
)  # fmt: skip
def test_some_correct_modules_are_within_the_limits(modes, names):
    for name in names:
        check_module(name, modes, 1)


@pytest.mark.parametrize("count", [2**12, 2**14])
def test_a_long_sum_is_allowed_the_roundings_that_it_has(count):
    """Summed one term after the other, as `cumsum` does on every processor: n terms lose about
    0.3 sqrt(n) roundings, and sqrt(n) / 16 times four are allowed for."""
    rng = np.random.default_rng(0)
    terms = np.multiply(*rng.standard_normal((2, 2**20 // count, count)).astype(np.float32))
    wide, found = terms.sum(1, np.float64), terms.cumsum(1)[:, -1]
    roundings = rms(found - wide) / (4 * unit_roundoff(found.dtype) * rms(wide))
    assert 1 / 2 < roundings / of_sum(1, count) < 2
    assert roundings > r_limit("Conv2d").warn  # without the allowance


def test_every_row_can_be():
    """What needs no measurement: names, families, a largest that is one, and the units of sums."""
    for heading in ("Correct modules", "Gradients of correct"):
        rows = measured(heading)
        assert [row[0] for row in rows] == list(CORRECT)
        for name, family, median, largest in rows:
            assert family == r_limit(name.partition(",")[0]).family, name
            assert 0 < float(median) <= float(largest), name
    for count, unit, *_ in measured("Sums over many positions"):
        assert unit == f"{int(count) ** 0.5 / LONG:.1f}"
    assert [row[0] for row in measured("Fault zoo")] == [case.name for case in zoo.CASES]


def test_the_environment_is_the_one_that_is_pinned():
    """Versions, of whatever build, and the same number of seeds everywhere."""
    seeds, versions = re.search(r"--seeds (\d+)`: (.*), cpu:0\.", DOCUMENT).groups()
    assert set(re.findall(r"(\d+) seeds", DOCUMENT)) == {seeds}
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    for version in versions.split(", "):
        assert version.partition("+")[0].replace(" ", "==") in pinned


def test_the_words_of_the_document_are_those_of_the_tool(monkeypatch):
    """But for figures: what is written by hand is lost when the document is made anew."""
    monkeypatch.setattr(measure_r, "CORRECT", {})
    monkeypatch.setattr(measure_r, "of_sum", lambda count, seed: (0.0, 0.0))
    monkeypatch.setattr(zoo, "CASES", ())
    lines = [line for line in measure_r.measure(20) if not line.startswith(("| ", "Measured"))]
    assert set(lines) <= set(DOCUMENT.splitlines())
