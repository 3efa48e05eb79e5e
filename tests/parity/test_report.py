import io
import json
import math
from dataclasses import replace

import jax.numpy as jnp
import jsonschema
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import parity
from parity.core.exceptions import InputError
from parity.core.files import write_all, write_text
from parity.core.measurements import Error, Metrics
from parity.core.pair import Rung
from parity.core.verdicts import Coverage, Row
from parity.report import Report
from parity.report.as_json import as_json
from parity.report.cells import COLUMNS
from parity.report.history import since_last_good
from parity.report.markdown import as_markdown
from parity.report.table import by_kind, summarise
from parity.report.terminal import show
from tests.commands import python
from tests.nets import torch_of
from tests.ports import nnx_of
from tests.reports import SCHEMA


def test_json_follows_the_published_schema(report):
    document = json.loads(as_json(report))
    jsonschema.validate(document, SCHEMA)
    assert document["verdict"] == "FAIL"
    assert document["faults"][0]["path"] == "stem"
    assert len(document["rows"]) == len(report.rows)
    assert document["environment"]["versions"]["torch"].startswith("2.")
    assert document["coverage"]["complete"] is True


def test_the_reason_of_every_doubt_reaches_the_reader(image):
    port = nnx_of(lambda _, x: (jnp.tanh(x), object()))

    report = parity.compare(
        torch_of(lambda _, x: (x.tanh(), object())), port, (image,), check_compiled=False
    )
    assert report.verdict == "UNKNOWN"
    line = "UNKNOWN: `<root>` output `1` call 0 of __call__: not compared: object is no array"
    assert line in as_markdown(report)
    console = Console(record=True, width=200, file=io.StringIO())
    show(report, console)
    assert line in console.export_text()
    reasons = json.loads(as_json(report))["reasons"]
    assert sorted(map(bool, reasons)) == [False, True]


def test_json_has_no_bare_nan_or_infinity():
    row = some_row(mae=math.inf, r=math.nan)
    text = as_json(report_of(row))
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    values = dict(zip(document["columns"], document["rows"][0], strict=True))
    assert (values["mae"], values["R"]) == ("inf", None)
    jsonschema.validate(document, SCHEMA)


def test_csv_reads_back_exactly(report, tmp_path):
    report.to_csv(tmp_path / "a.csv")
    back = pd.read_csv(tmp_path / "a.csv")
    assert tuple(back.columns) == COLUMNS
    for column in ("mae", "incl_mae", "excl_rel_l2", "R", "gain", "cosine"):
        np.testing.assert_array_equal(back[column], report.table[column])


def test_markdown_says_what_matters_first(report, tmp_path):
    report.to_markdown(tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text()
    assert text.startswith("# TorchNet against NnxNet: FAIL")
    assert "`stem` (Conv2d), call 0" in text
    assert text == as_markdown(report)


def some_row(mae=1e-7, r=1.0, rung="conv", verdict="PASS", limited=True, path="a"):
    free = Metrics(mae, mae, mae, mae, mae, mae, mae, 0, 1, 1, (0, 1), 0)
    return Row(
        rung, "c", path, path, "M", 0, "", (2, 3), "float32", free,
        Error(mae, mae, 0), Error(mae, mae, 0, r=r), 2.0, "perfect", verdict, "",
        0, -1, limited,
    )  # fmt: skip


def report_of(*rows, **options):
    coverage = Coverage(1, ("a",), {}, (), {}, 1, 1, 0, 0, 0, 0)
    values = {"coverage": coverage, "faults": (), "environment": {}, "facts": {}} | options
    values["environment"] = dict.fromkeys(SCHEMA["properties"]["environment"]["required"])
    return Report("r", tuple(rows), rungs=(Rung("conv", ("M",), 1e-6),), **values)


def test_a_report_of_nothing_fails():
    assert report_of().verdict == "FAIL"
    assert not report_of()


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [(["PASS"], "PASS"), (["PASS", "WARN"], "WARN"), (["UNKNOWN", "WARN"], "UNKNOWN"),
     (["FAIL", "UNKNOWN"], "FAIL")],
)  # fmt: skip
def test_the_worst_row_counts(verdicts, expected):
    assert report_of(*(some_row(verdict=v) for v in verdicts)).verdict == expected


def test_incomplete_coverage_fails():
    missing = Coverage(2, ("a",), {}, ("b",), {}, 1, 1, 0, 0, 0, 0)
    assert report_of(some_row(), coverage=missing).verdict == "FAIL"


@pytest.mark.parametrize("name", ["layers", "weights", "../evil", "a/b"])
def test_a_rung_has_a_file_of_its_own(name, tmp_path):
    with pytest.raises(InputError, match="expected a name for a file of its own"):
        Rung(name, ("M",), 1e-6)
    folder = tmp_path / "report"
    report_of(some_row()).write(folder)
    document = json.loads((folder / "report.json").read_text())
    document["ladder"][0]["name"] = name
    (folder / "report.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="expected a name for a file of its own"):
        Report.from_json(folder)


def test_history_passes_over_other_cases():
    row = some_row()
    other = replace(row, case="another")
    worse = report_of(replace(row, verdict="FAIL"))
    assert since_last_good({1: report_of(row), 2: report_of(other), 3: worse})[0] == 1
    assert since_last_good({2: report_of(other), 3: worse}) is None


def test_rung_summary_leaves_large_means_out_of_the_mae_but_not_of_r():
    rows = [some_row(mae=1e-7, r=1.0), some_row(mae=5.0, r=1.9, limited=False, path="b")]
    (line,) = summarise(rows, (Rung("conv", ("M",), 1e-6), Rung("other", ("X",), 1)))
    assert (line.incl_mae, line.r, line.rows, line.worst) == (1e-7, 1.9, 2, "c a")


def test_r_by_kind_of_module():
    rows = [some_row(r=r) for r in (math.nan, *range(1, 101))]
    rows += [replace(some_row(), kind="GroupNorm", exclusive=Error(0, 0, 0, bounded=True))]
    plain, norm = by_kind(rows)
    assert (plain.kind, plain.calls, plain.measured, plain.bounded) == ("M", 1, 100, 0)
    assert (plain.median, plain.p95, plain.largest) == (50, 95, 100)
    assert (plain.warn, plain.fail) == (3, 10)
    assert (norm.measured, norm.bounded, norm.fail) == (0, 1, 30)
    assert math.isnan(norm.largest)
    text = as_markdown(report_of(*rows))
    assert "| M | 1 | 100 | 0 | 50 | 95 | 100 | 3 | 10 |" in text


def test_the_folder(tmp_path):
    report = report_of(some_row())
    names = {path.name for path in report.write(tmp_path / "new" / "run")}
    assert names == {
        "layers.csv", "conv.csv", "weights.csv", "report.json", "report.md", "report.html",
        "junit.xml",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "new" / "run").iterdir()} == names


@pytest.mark.parametrize(
    ("returned", "child_inputs", "own"),
    [(math.nan, 0.0, math.nan), (math.nan, 0.5, 0.5), (0.1, 0.0, 0.1), (0.1, 0.5, 0.5)],
)
def test_the_local_error_is_of_outputs_and_child_inputs(returned, child_inputs, own):
    error = Error(returned, returned, 0)
    row = replace(some_row(), exclusive=error, child_inputs=child_inputs)
    assert row.own == pytest.approx(own, nan_ok=True)


def test_writing_replaces_whole_files(tmp_path):
    write_text(tmp_path / "a", "old")
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failure_while_writing_leaves_the_old_files(tmp_path):
    write_all(tmp_path, {"a": "old", "b": "old"})
    with pytest.raises(TypeError):
        write_all(tmp_path, {"a": "new", "b": None})
    assert (tmp_path / "a").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_what_cannot_be_written_is_said_with_its_place(report, tmp_path):
    """And not with that of the temporary folder, which nobody asked for."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name, place in (
        ("folder", "folder"),
        ("file/report.csv", "file"),
        ("n" * 300, "n" * 300),
        ("file/new/report.csv", "file/new"),
    ):
        with pytest.raises(parity.InputError) as refused:
            report.to_csv(tmp_path / name)
        assert str(refused.value).startswith(f"{tmp_path / place}: cannot be written (")
        assert ".writing-" not in str(refused.value)
    assert {path.name for path in tmp_path.rglob("*")} == {"folder", "file"}


def test_importing_parity_is_cheap():
    heavy = ("torch", "jax", "pandas")
    code = f"import sys, parity, parity.cli; print(any(m in sys.modules for m in {heavy}))"
    assert python("-c", code).strip() == "False"
