"""A trace of statistics: what it keeps, and what a check against it can and cannot say."""

import json
import re

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.golden import index, sample
from parity.golden.check import check_trace
from parity.golden.record import record_pair
from tests.docs.sources import numbers

ASKED = {"frames": 1, "size": (8, 8), "seed": 3}


@pytest.fixture(scope="module")
def sketched(tmp_path_factory, few):
    folder = tmp_path_factory.mktemp("sketched")
    record_pair(tiny.PAIR, folder, **ASKED, statistics=True)
    return folder


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 1 << 40))
def test_places_are_of_the_array_in_order_and_spread(size):
    found = sample.places(size)
    assert len(found) == min(size, sample.KEPT)
    assert not size or (found[0] >= 0 and found[-1] < size)
    assert (np.diff(found) > 0).all()
    if size > sample.KEPT:
        assert (np.abs(np.diff(found) - size / sample.KEPT) <= size / sample.KEPT + 1).all()


def test_places_stay_the_same_for_ever(monkeypatch):
    """A trace is read by later versions: this is what the first one drew."""
    sample.places.cache_clear()
    monkeypatch.setattr(sample, "KEPT", 4096)
    assert list(sample.places(10**9)[:3]) == [22091, 478041, 717285]
    sample.places.cache_clear()


def test_figures_are_of_what_is_finite():
    array = np.array([1, -3, np.nan, 5, np.inf], np.float32)
    found = sample.figures(array)
    assert (found.mean, found.least, found.most, found.nonfinite) == (1, -3, 5, 2)
    assert found.rms == pytest.approx((35 / 3) ** 0.5)
    assert np.isnan(sample.figures(array[2:3]).mean)
    assert sample.figures(np.array([3 + 4j], np.complex64)).most == 5


def test_a_right_port_is_at_best_a_warn(sketched, recorded):
    report = check_trace(sketched, tiny.PAIR)
    assert report.verdict == "WARN"
    assert report.notes[0].startswith("statistics: the trace has at most")
    assert set(report.table["verdict"]) == {"PASS"}
    whole = check_trace(recorded, tiny.PAIR)
    assert (report.coverage, report.weights) == (whole.coverage, whole.weights)
    table = report.table
    inside = table[(table["path"] == "head") & (table["case"] == "__call__/image")].iloc[0]
    assert inside["R"] > 0
    assert np.isnan(inside["excl_mae"])  # it was given something else, if only by rounding
    stem = table[table["path"] == "stem"].iloc[0]
    assert stem["excl_mae"] >= 0
    assert stem["R"] > 0


def test_estimates_are_near_the_whole(sketched, recorded):
    """64 entries of 1000 tell an error to a factor; the rms of the reference is exact."""
    ours, whole = (check_trace(folder, tiny.BIAS).table for folder in (sketched, recorded))
    assert list(ours["path"]) == list(whole["path"])
    near = ours["mae"].to_numpy() / whole["mae"].to_numpy()
    assert (np.abs(np.log(near[whole["mae"] > 1e-3])) < np.log(2)).all()
    np.testing.assert_array_less(whole["mae"].max() / 2, ours["mae"].max())


def test_the_first_deviation_is_the_fault(sketched):
    report = check_trace(sketched, tiny.WRONG)
    assert report.verdict == "FAIL"
    first = report.first_fault
    assert (first.path, first.cause, first.call) == ("stem", "weights_value", 0)
    assert {fault.path for fault in report.faults} == {"stem", "block", ""}
    behind = next(row for row in report.rows if row.path == "block.norm")
    assert (behind.verdict, behind.exclusive.r) == ("UNKNOWN", pytest.approx(np.nan, nan_ok=True))


def test_one_wrong_entry_shows_in_the_figures(sketched, monkeypatch):
    """An entry that is not kept: the largest of all is another then, and what is not finite."""
    act = tiny.Act.__call__

    def spoilt(value):
        def call(self, x):
            return act(self, x).at[0, 0, 1, 0].set(value)

        return call

    for value, verdict in ((np.nan, "FAIL"), (1e4, "FAIL")):
        monkeypatch.setattr(tiny.Act, "__call__", spoilt(value))
        report = check_trace(sketched, tiny.PAIR)
        assert report.verdict == verdict
        assert report.first_fault.path == "block.act"


def test_of_a_part_too(tmp_path, few):
    record_pair(tiny.PAIR, tmp_path, **ASKED, statistics=True, only=["stem"])
    sound, wrong = (check_trace(tmp_path, pair) for pair in (tiny.PAIR, tiny.BIAS))
    assert (sound.verdict, wrong.verdict) == ("WARN", "FAIL")
    assert set(sound.table["path"]) == {"stem"}
    assert "a part only: 1 of" in sound.partial
    assert "; statistics: " in sound.partial
    assert [fault.path for fault in wrong.faults] == ["stem"]


def test_what_it_holds(sketched, recorded):
    content = json.loads((sketched / index.NAME).read_text())
    case = content["cases"][0]
    kept = {digest for shard in case["shards"] for digest in shard["digests"]}
    given, returned = case["given"], case["calls"][-1]["outputs"]
    assert {form[0] for form in given} <= kept
    assert {leaf["array"][0] for leaf in returned} <= kept
    first = case["calls"][0]["outputs"][0]["array"]
    assert first[0] not in kept
    assert case["sketches"][first[0]]["kept"][1] == [64]
    sizes = [sum(path.stat().st_size for path in folder.glob("*.safetensors"))
             for folder in (sketched, recorded)]  # fmt: skip
    assert sizes[0] < sizes[1] / 2


def test_products_are_not_emulated_on_it(sketched):
    with pytest.raises(InputError, match="has statistics only, and emulate="):
        check_trace(sketched, tiny.PAIR, emulate="bf16")


@pytest.mark.slow
def test_the_earlier_ports_pooling_is_found(tmp_path):
    """In the small configuration, named first, with the line where it is."""
    from dataclasses import replace

    import mutants

    from jaxvae.pairs.cogvideox.pair import PAIR

    def wrong(settings, tensors):
        return mutants.mistake_pooling(PAIR.offline.make_nnx(settings, tensors))

    clip = replace(PAIR, cases=mutants.clip_only)
    record_pair(clip, tmp_path, config="small", statistics=True)
    assert check_trace(tmp_path, clip).verdict == "WARN"
    pooling = replace(clip, offline=replace(PAIR.offline, make_nnx=wrong))
    report = check_trace(tmp_path, pooling)
    assert report.verdict == "FAIL"
    assert [(fault.path, fault.segment) for fault in report.faults] == [
        ("encoder.down_blocks.0.downsamplers.0", "between its own input and the input of `conv`")
    ]
    (shown,) = numbers("README.md", "and # where the mistaken pooling begins")
    found = re.search(r"\(R (\S+) >", report.faults[0].evidence)
    assert shown / 2 < float(found[1]) < 2 * shown


@pytest.mark.slow
def test_sizes_and_r_are_those_of_the_readme(tmp_path):
    """Sizes to 5 %; R may be half as large again, as other processors round otherwise."""
    from jaxvae.pairs.cogvideox.pair import PAIR

    shown = numbers("README.md", "that is # MB instead of #")
    for statistics, megabytes in zip((True, False), shown, strict=True):
        record_pair(PAIR, tmp_path / str(statistics), config="small", statistics=statistics)
        size = sum(path.stat().st_size for path in (tmp_path / str(statistics)).iterdir())
        assert size / 1e6 == pytest.approx(megabytes, rel=0.05)
    (largest,) = numbers("README.md", "finds R at most # in the right port")
    assert check_trace(tmp_path / "True", PAIR).table.R.max() < 1.5 * largest
