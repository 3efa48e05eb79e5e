"""The limits on R against the measurements that docs/thresholds.md records."""

import re
from pathlib import Path

import pytest

import parity
from parity.core.limits import TABLE, r_limit
from parity.measure.noise import LONG
from tests.faultzoo import zoo
from tools import measure_r
from tools.measure_r import CORRECT, of_case, of_leaf, of_sum, table_of

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


def test_a_measurement_is_repeated():
    name = "GroupNorm, mean/std 1000"
    largest = float(next(row[3] for row in measured("Correct modules") if row[0] == name))
    assert 1 < of_leaf(CORRECT[name], 0) < 1.5 * largest


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
    nothing, and a port that is as bad passes."""
    found = table_of(CORRECT["GroupNorm, mean/std 1000"], 0, gradients=True)
    found = found[found.leaf.str.startswith("grad(")]
    assert found.floor_rel_l2.max() < 1e-4
    assert set(found.verdict) == {"PASS"}


def as_shown(heading):
    """Median and largest R of each module below a heading."""
    return {name: (float(median), float(most)) for name, _, median, most in measured(heading)}


OUTPUTS, GRADIENTS = ("Correct modules", False), ("Gradients of correct", True)


def check_module(name, heading, gradients, seeds):
    """No R is more than half as large again as the largest shown, and 0.05, and the largest is at
    least a third of the median."""
    median, largest = as_shown(heading)[name]
    found = max(of_leaf(CORRECT[name], seed, gradients) for seed in range(seeds))
    assert median / 3 - 0.05 <= found <= 1.5 * largest + 0.05, heading


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_correct_modules_are_measured_again(name):
    """With three of the seeds."""
    for heading, gradients in (OUTPUTS, GRADIENTS):
        check_module(name, heading, gradients, 3)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (OUTPUTS, (
            "Conv2d", "Conv3d", "Linear", "Attention", "SiLU", "Tanh", "GroupNorm, mean/std 30",
            "LayerNorm, mean/std 1000", "InstanceNorm2d, mean/std 10000",
        )),
        (GRADIENTS, ("Conv3d", "Linear", "GELU", "LayerNorm, mean/std 30")),
    ],
    ids=["outputs", "gradients"],
)  # fmt: skip
def test_some_correct_modules_are_measured_again(table, names):
    """With the first seed, in the quick suite."""
    for name in names:
        check_module(name, *table, 1)


def check_sum(count, unit, *shown):
    """To a third, for the same seeds: how a sum is blocked depends on the processor."""
    assert unit == f"{int(count) ** 0.5 / LONG:.1f}"
    pairs = [of_sum(int(count), seed) for seed in range(5)]
    for ours, found in zip(shown, zip(*pairs, strict=True), strict=True):
        assert float(ours) / 1.34 < max(found) < 1.34 * float(ours), count


@pytest.mark.slow
def test_sums_are_measured_again():
    for row in measured("Sums over many positions"):
        check_sum(*row)


def test_short_sums_are_measured_again():
    """In the quick suite."""
    for row in measured("Sums over many positions")[:2]:
        check_sum(*row)


SOME = ("kernel_flipped", "other_number_of_groups", "variance_in_one_pass")


@pytest.mark.slow
@pytest.mark.parametrize("case", zoo.CASES, ids=lambda case: case.name)
def test_the_fault_zoo_is_measured_again(case):
    check_case(case)


@pytest.mark.parametrize("name", SOME)
def test_some_faults_are_measured_again(name):
    """In the quick suite."""
    check_case(next(case for case in zoo.CASES if case.name == name))


def check_case(case):
    """With one of the seeds: healthy calls at most half as far again as shown, and the module at
    fault at least two thirds as far, and no more than ten times."""
    row = next(row for row in measured("Fault zoo") if row[0] == case.name)
    for family, shown in zip(("norm", "other"), row[1:3], strict=True):
        healthy = [r for _, kind, r in of_case(case, False, 0) if r_limit(kind).family == family]
        assert bool(healthy) == bool(shown)
        assert not healthy or max(healthy) <= 1.5 * float(shown) + 0.05
    fault = max(r for path, _, r in of_case(case, True, 0) if path == case.path)
    assert float(row[3]) / 1.5 < fault < 10 * float(row[3])


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
