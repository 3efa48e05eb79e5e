"""Reports read back: the same again, or one clear line."""

import itertools
import json
import math
import pickle
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

import parity
from parity.core.codec import LARGEST
from parity.core.exceptions import InputError
from parity.core.measurements import Error, Metrics, NonFinite
from parity.core.pair import Rung
from parity.core.problems import PORT_LACKS, not_measured
from parity.core.verdicts import Row
from parity.report import Report
from parity.report.as_json import as_json, dumps
from parity.report.cells import EVERY, cells, to_row
from parity.report.markdown import as_markdown

indices = st.lists(st.integers(0, 99), max_size=4).map(tuple)
counts = st.integers(0, 9)
metrics = st.builds(Metrics, worst_index=indices, nonfinite=counts)
problems = st.none() | st.text(min_size=1).map(not_measured)
measured = {
    "nonfinite": counts,
    "floor_rel_l2": ...,
    "r": ...,
    "problem": problems,
    "bounded": ...,
}
rows = st.builds(
    Row,
    call=counts,
    shape=indices,
    metrics=st.none() | metrics,
    inclusive=st.none() | st.builds(Error, **measured),
    exclusive=st.none() | st.builds(Error, **measured, moved=...),
    reason=st.just("why"),
    limited=...,
    one_sided=st.sampled_from(["", "port"]),
    child_inputs=...,
)


@given(rows)
def test_every_row_comes_back(row):
    back = to_row(json.loads(dumps(cells(row, EVERY))), "why", "here")
    assert repr(back) == repr(row)  # NaN is not equal to itself


@pytest.fixture(scope="module")
def wide(report):
    """A report with something in each of its parts."""
    first = report.rows[0]
    hidden = replace(
        first, call=7, metrics=None, inclusive=None, gain=math.inf, one_sided="reference",
        reason=PORT_LACKS.text,
    )  # fmt: skip
    return replace(
        report,
        rows=(*report.rows, hidden),
        rungs=(Rung("conv", ("Conv2d",), 1e-6, free=True), Rung("empty", ("None",), 1.0)),
        partial="a part only",
        inputs=("an input is zero everywhere",),
        unexercised=("a batch of one",),
        nonfinite=(NonFinite("port", "c", "a", "M", 0, "", 1, 2, 8, math.nan, 0, True),),
        coverage=replace(report.coverage, proposal="ignore=['a']"),
        facts={**report.facts, "input": "clip", "seconds_by_stage": {"capture": 0.5}},
    )


def test_a_report_that_is_read_back_writes_the_same_files(wide, tmp_path):
    written = wide.write(tmp_path / "first")
    assert wide.emulations
    assert wide.faults
    for place in (tmp_path / "first", tmp_path / "first/report.json", str(tmp_path / "first")):
        back = Report.from_json(place)
        assert (back.verdict, back.notes) == (wide.verdict, wide.notes)
        for path in back.write(tmp_path / "second"):
            assert path.read_bytes() == (tmp_path / "first" / path.name).read_bytes()
    assert {path.name for path in written} == {p.name for p in (tmp_path / "second").iterdir()}
    assert as_json(back) == as_json(wide)
    assert as_markdown(back) == as_markdown(wide)
    assert back.outputs == {}


def test_rows_have_a_line_each(report):
    lines = as_json(report).splitlines()
    assert sum(line.startswith('  ["","__call__","stem"') for line in lines) == 1


REMOVED = object()


def edited(document, key, value):
    """Replace or remove what `key` leads to."""
    *parents, last = key
    for part in parents:
        document = document[part]
    if value is REMOVED:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (["format"], 2, "format 2, this version reads 1; make the report again"),
        (["format"], 0, "format 0, this version reads 1"),
        (["format"], True, "format True, this"),
        (["format"], "1", "format '1', this"),
        (["format"], REMOVED, "no parity report"),
        (["ladder"], REMOVED, "'ladder' is missing; was it written by another version?"),
        (["gradients"], [], "'gradients' is unknown; was it written by another version?"),
        (["rows"], {}, r"\.rows: expected a list, found \{\}"),
        (["rows", 0, 5], "0", r"rows\[0\]\.call: expected an integer, found '0'"),
        (["rows", 0, 5], True, r"rows\[0\]\.call: expected an integer, found True"),
        (["rows", 0, 7], "2x", r"rows\[0\]\.shape: expected numbers with 'x' between"),
        (["rows", 0, 9], "0.5", r"rows\[0\]\.mae: expected a number, null, \"inf\""),
        (["rows", 0, 9], 10**4000, r"rows\[0\]\.mae: expected a number, null, \"inf\""),
        (["rows", 0, 27], "FINE", r"rows\[0\]\.verdict: expected one of PASS, WARN"),
        (["rows", 0, 5], REMOVED, r"rows\[0\]: 45 values for 46 columns"),
        (["reasons", 0], REMOVED, r"reasons for \d+ rows"),
        (["columns", 0], REMOVED, "its columns are not those of this version"),
        (["faults", 0, "call"], None, r"faults\[0\]\.call: expected an integer, found N"),
        (["faults", 0, "hint"], REMOVED, r"faults\[0\]: 'hint' is missing"),
        (["coverage", "modules"], 1.5, r"coverage\.modules: expected an integer"),
        (["coverage", "matched", 0], 1, r"coverage\.matched\[0\]: expected a string"),
        (["emulations", 0, "outputs"], {"": [1.0]}, r"outputs\.: expected a list of 2"),
        (["verdict"], "PASS", "says PASS, and what it holds makes FAIL: was it edited"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_report_of_this_format(key, value, message, report, tmp_path):
    document = json.loads(as_json(report))
    edited(document, key, value)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message) as caught:
        Report.from_json(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JSON, or cut short"),
        (b"rung,case,path\n", "no JSON, or cut short"),
        (b'{"format": NaN}', "NaN is no JSON"),
        (b"[" * 100_000, "no JSON, or cut short"),
        (pickle.dumps({"format": 1}), "no JSON, or cut short"),
        (b"[1]", "no parity report"),
        (b"{}", "no parity report"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_json_or_no_report(content, message, tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        Report.from_json(path)
    assert "\n" not in str(caught.value)


def test_a_report_that_was_cut_short(report, tmp_path):
    path, text = tmp_path / "report.json", as_json(report)
    for part in (0.1, 0.5, 0.999):
        path.write_text(text[: int(part * len(text))])
        with pytest.raises(InputError, match="no JSON, or cut short"):
            Report.from_json(path)


def test_what_is_no_file_or_too_large(tmp_path):
    with pytest.raises(InputError, match=r"gone: no such file; give a report\.json, or the folder"):
        Report.from_json(tmp_path / "gone")
    with pytest.raises(InputError, match=r"report\.json: no such file"):
        Report.from_json(tmp_path)
    with pytest.raises(InputError, match="not a file"):
        Report.from_json("/dev/zero")
    with (tmp_path / "large").open("w") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(InputError, match=f"at most {LARGEST} can be read"):
        parity.Report.from_json(tmp_path / "large")
