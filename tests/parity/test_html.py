"""The page as a file: complete, escaped, self-contained, readable in both colour schemes."""

import base64
import io
import json
import math
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from PIL import Image

import parity
from parity.core.error_map import EDGES, Along, ErrorMap
from parity.core.measurements import Error, Metrics
from parity.core.pair import Rung
from parity.core.tensors import Weight
from parity.core.verdicts import Coverage, Fault, Row
from parity.report import Report
from parity.report.as_json import as_json
from parity.report.faults import fault_parts, grouped_faults
from parity.report.html.data import page_data
from parity.report.html.page import as_html, as_notebook
from parity.report.html.picture import VIRIDIS, picture
from parity.report.markdown import markdown_head
from parity.report.modules import module_tree
from parity.run.assemble import ERROR_MAPS, _merged_faults

EVIL = "a</script><script>alert(1)</script>\"><img src=x onerror='alert(1)'>`{{ 7 * 7 }}`&amp;"
CSS = files("parity.report.html").joinpath("templates/page.css").read_text()


class Page(HTMLParser):
    """Tags with their attributes, the text of scripts, and all other text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.text = [], [], ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag in ("script", "style")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data

    def data(self):
        return json.loads(self.scripts[0], parse_constant=pytest.fail)


def row(path="a", error=1e-7, verdict="PASS", **other):
    free = Metrics(error, error, error, error, error, error, error, 0, 1, 1, (0, 1), 0)
    given = {"order": 0, "call": 0, "case": "c", "leaf": "", "kind": "M", "reason": ""} | other
    return Row(
        "conv", given["case"], path, path, given["kind"], given["call"], given["leaf"], (2, 3),
        "float32", free, Error(error, error, 0), Error(error, error, 0, 1e-8, 1.0), 2.0,
        "perfect", verdict, given["reason"], given["order"], -1,
    )  # fmt: skip


def report_of(*rows, **options):
    coverage = Coverage(1, ("a",), {}, (), {}, len(rows), len(rows))
    given = {"coverage": coverage, "faults": (), "environment": {"command": "parity run",
             "commit": None}, "facts": {}} | options  # fmt: skip
    return Report("r", tuple(rows), rungs=(Rung("conv", ("M",), 1e-6),), **given)


@pytest.fixture(scope="module")
def text(faulty):
    return as_html(faulty)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def section(text, name):
    """The text of a section, in one line."""
    found = re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL)[0]
    return re.sub(r"\s+", " ", Page(found.replace("<dd>", " <dd>")).text)


def test_the_page_says_what_the_report_says(faulty, page, text):
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == ["faults", "summary", "drift-section", "modules", "rows", "coverage",
                        "weights", "run"]  # fmt: skip
    words = re.sub(r"\s+", " ", page.text)
    assert f"{faulty.verdict}{faulty.name}" in words
    assert "What it passes to blocks.0.norm, argument input, given the reference's inputs" in words
    for weight in faulty.weights:
        assert weight.name in words
    run, summary = section(text, "run"), section(text, "summary")
    assert faulty.environment["command"] in run
    assert faulty.environment["versions"]["torch"] in run
    for name in ("seconds", "peak_memory_gib"):
        assert name in faulty.facts
        assert f"{name} {faulty.facts[name]}" in run
        assert name not in summary
    assert f"rows {len(faulty.rows)}" in summary


def test_inputs_and_weights_are_told_in_the_summary():
    text = as_html(report_of(row(), facts={"input": "a clip", "weights": "random", "seconds": 3}))
    assert "input a clip weights random" in section(text, "summary")
    assert "a clip" not in section(text, "run")


def test_each_mistake_is_a_card_with_the_parts_that_every_format_has(faulty, text):
    found = section(text, "faults")
    for number, (first, *alike) in enumerate(grouped_faults(faulty.faults), 1):
        assert f"{number}. {first.cause}" in found
        for name, part in fault_parts(first, *alike).items():
            assert f"{name} {part}".replace("`", "") in found
    for side in (faulty.faults[0].lines.port, faulty.faults[0].lines.reference):
        assert f"{side[0].place}: {side[0].operation}" in found
        assert f"{side[0].line} {side[0].text.strip()}" in found


def test_equal_faults_are_one_card_to_which_all_lead():
    alike = [Fault(path, 0, "", "c", "M", "what 1.5", cause="axis") for path in ("a.b", "a.d")]
    other = Fault("a.c", 0, "", "c", "M", "else", cause="eps")
    rows = [row("a.b"), row("a.c"), row("a.d")]
    report = report_of(*rows, faults=(alike[0], other, alike[1]))
    page = Page(as_html(report))
    cards = [attrs["id"] for tag, attrs in page.tags if tag == "article"]
    assert cards == ["fault-1", "fault-2"]
    assert "and 1 alike" in page.text
    assert page.data()["faults"] == [[1, 0], [1, 2], [2, 1]]
    (a,) = module_tree(report).inside
    assert [module.fault for module in a.inside] == [1, 2, 1]


def test_what_is_copied_is_the_head_of_the_report_in_markdown(faulty, page, tmp_path):
    copied = page.data()["markdown"]
    faulty.to_markdown(tmp_path / "report.md")
    title, facts, *rest = (tmp_path / "report.md").read_text().split("\n\n")
    assert facts.startswith("- ")
    assert "\n\n".join([title, *rest]).startswith(copied.rstrip())
    assert copied.endswith("```\n")
    passed = markdown_head(report_of(row()))
    assert passed == "# r: PASS\n"


def test_the_picture_of_an_error_map():
    heat = ((0.0, 1.0, 2.0), (math.nan, 0.5, math.inf))
    along = (Along("row", 2, (1.0, 1.0)),)
    counts = (0,) * (len(EDGES) + 2)
    found = picture(ErrorMap("", "", False, 1.0, along, "", ("row", ""), (2, 30), heat, counts))
    assert found[1:] == (0.0, 2.0, 4, "down: row 0 to 1; across: one line 0 to 29")
    shown = Image.open(io.BytesIO(base64.b64decode(found.url.partition(",")[2])))
    pixels = [shown.getpixel((x, y)) for y in (0, 1) for x in (0, 1, 2)]
    colours = [(*bytes.fromhex(VIRIDIS[at][1:]), 255) for at in (0, 4, 8)]
    assert (pixels[:3], pixels[4]) == (colours, (*bytes.fromhex(VIRIDIS[2][1:]), 255))
    assert (pixels[3][3], pixels[5][3]) == (0, 0)
    empty = ErrorMap("", "", False, 1.0, along, "", ("row", ""), (0, 0), ((math.nan,),), counts)
    assert math.isnan(picture(empty).low)
    assert "<img" in as_html(
        report_of(row(), faults=(Fault("a", 0, "", "c", "M", error_map=empty),))
    )


def test_the_table_has_every_row(faulty, page):
    data = page.data()
    assert len(data["rows"]) == len(faulty.rows)
    columns = {name: at for at, name in enumerate(data["columns"])}
    for found, expected in zip(data["rows"], faulty.rows, strict=True):
        assert found[columns["path"]] == expected.path
        assert found[columns["verdict"]] == expected.verdict
        assert found[columns["reason"]] == expected.reason
        if expected.inclusive and not math.isnan(expected.inclusive.mae):
            assert found[columns["incl_mae"]] == pytest.approx(expected.inclusive.mae, rel=1e-3)
    assert set(data["shown"]) < set(data["columns"])


def test_the_same_report_gives_the_same_file(faulty, text):
    assert as_html(faulty) == text


def test_what_is_not_finite_or_not_measured_is_json():
    values = page_data(report_of(row(error=math.inf), row(error=math.nan)))
    columns = values["columns"]
    assert [line[columns.index("mae")] for line in values["rows"]] == ["inf", None]
    json.dumps(values, allow_nan=False)


def test_hostile_names_stay_text():
    hostile = row(path=EVIL, kind=EVIL, case=EVIL, leaf=EVIL, reason=EVIL, verdict="FAIL")
    fault = Fault(EVIL, 0, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL)
    weight = Weight(EVIL, EVIL, "parameter", (1,), (1,), "", EVIL, EVIL)
    report = report_of(
        hostile,
        faults=(fault,),
        inputs=(EVIL,),
        unexercised=(EVIL,),
        weights=(weight,),
        coverage=Coverage(2, (EVIL,), {EVIL: EVIL}, (EVIL,), {EVIL: EVIL}, 1, 1,
                          unmatched_calls=(EVIL,), unmatched_tensors=(EVIL,)),
        environment={"command": EVIL, "commit": EVIL, EVIL: {EVIL: EVIL}},
        facts={EVIL: EVIL},
    )  # fmt: skip
    report = replace(report, name=EVIL, rungs=(Rung("conv", (EVIL,), 1e-6),))
    text = as_html(report)
    found = Page(text)
    assert len(found.scripts) == 2
    assert found.data()["rows"][0][found.data()["columns"].index("path")] == EVIL
    for tag, attrs in found.tags:
        assert tag != "img"
        assert not [name for name in attrs if name.startswith("on")]
    assert found.text.count("{{ 7 * 7 }}") > 10  # no template of its own either
    piece = Page(as_notebook(report))
    assert "script" not in {tag for tag, _ in piece.tags}
    assert "img" not in {tag for tag, _ in piece.tags}
    assert EVIL.replace("`", "") in piece.text


def test_nothing_is_fetched(page):
    for tag, attrs in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attrs.get(name, "#")[:1] == "#" or attrs[name].startswith("data:image/png")
    assert "@import" not in CSS
    assert "url(" not in CSS
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_ids_are_of_one_element_each(page):
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [a.get("href") or a.get("xlink:href") for _, a in page.tags]
    targets = {target[1:] for target in targets if target and target.startswith("#")}
    assert targets <= set(ids)


def test_the_script_gets_the_error_maps(faulty, page):
    maps = page.data()["maps"]
    assert [tag for tag, attrs in page.tags if attrs.get("class") == "map"] == ["div"] * len(maps)
    for number, (first, *_) in enumerate(grouped_faults(faulty.faults), 1):
        found = maps[str(number)]
        assert found["counts"] == list(first.error_map.counts)
        assert found["along"][0]["axis"] == first.error_map.along[0].axis


def test_points_are_the_worst_of_a_call():
    rows = [row("a", 1e-7), row("a", 3e-7, leaf="x"), row("b", 2e-7)]
    rows.append(replace(row("b", 2e-7, call=1), child_inputs=0.5, exclusive=Error(0, 0, 0)))
    faults = (Fault("b", 1, "", "c", "M", ""), Fault("gone", 0, "", "c", "M", ""))
    data = page_data(report_of(*rows, faults=faults))
    first, free, _, exclusive, floor = zip(*data["calls"], strict=True)
    assert first == (0, 2, 3)
    assert free == (3e-7, 2e-7, 2e-7)
    assert exclusive == (3e-7, 2e-7, 0.5)
    assert floor == (pytest.approx(2**-22, rel=1e-3),) * 3
    assert data["measured"] == 2
    assert data["faults"] == [[1, 2]]


def test_every_module_has_its_place_and_its_worst_figures():
    rows = [row("a.b", 1e-3), row("a.b", 1e-3, call=1), row("a.c", 5.0), row("", 1e-9)]
    fault = Fault("a.b", 0, "", "c", "M", "")
    coverage = Coverage(4, ("",), {}, ("a.d",), {}, 4, 4)
    root = module_tree(report_of(*rows, faults=(fault,), coverage=coverage))
    (a,) = root.inside
    assert [(m.path, m.calls, m.verdict) for m in a.inside] == [
        ("a.b", 2, "PASS"), ("a.c", 1, "PASS"), ("a.d", 0, "FAIL")
    ]  # fmt: skip
    assert (a.inside[0].worst.own, a.inside[1].worst.own, root.worst.own) == (1e-3, 5.0, 1e-9)
    assert (root.faults, a.faults, a.inside[0].fault, a.inside[0].faults) == (1, 1, 1, 0)
    assert (a.verdict, math.isnan(a.worst.own)) == ("", True)


def test_reports_of_nothing_and_of_free_running_errors_alone_are_pages():
    empty = Page(as_html(report_of(environment={})))
    assert "Nothing was compared." in empty.text
    free = replace(row(), inclusive=None, exclusive=None, verdict="UNKNOWN", reason="why")
    found = Page(as_html(report_of(free)))
    assert found.data()["rows"][0][-1] == "why"


def test_few_faults_have_error_maps(faulty):
    shown = replace(faulty.faults[0], error_map=faulty.faults[0].error_map)
    many = _merged_faults([replace(shown, path=f"m{i}") for i in range(ERROR_MAPS + 5)])
    assert [fault.error_map is not None for fault in many] == [True] * ERROR_MAPS + [False] * 5


def test_json_has_the_error_maps(faulty):
    schema = json.loads((Path(parity.__file__).parent / "report/schema.json").read_text())
    document = json.loads(as_json(faulty))
    jsonschema.validate(document, schema)
    assert document["faults"][0]["error_map"]["unit"] > 0


def test_a_piece_of_a_notebook(faulty):
    text = faulty._repr_html_()
    piece = Page(text)
    assert "script" not in {tag for tag, _ in piece.tags}
    words = re.sub(r"\s+", " ", piece.text)
    assert faulty.verdict in words
    for fault in faulty.faults:
        assert f"{fault.path} ({fault.kind})" in words
        assert fault.cause in words
    port, reference = faulty.faults[0].lines.port[0], faulty.faults[0].lines.reference[0]
    assert f"port {port.place}" in words
    assert f"reference {reference.place}" in words
    assert port.text.strip() in words
    assert [attrs["src"][:15] for tag, attrs in piece.tags if tag == "img"] == ["data:image/png;"]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    for selectors in re.findall(r"^([^{\n]+)\{", style, re.MULTILINE):
        assert all(one.strip().startswith(".parity-report") for one in selectors.split(","))
    assert len(text) < 20_000


def test_a_notebook_links_the_page_that_was_written_last(faulty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = replace(faulty)  # of which no page was written

    def links():
        return [attrs["href"] for tag, attrs in Page(report._repr_html_()).tags if tag == "a"]

    assert links() == []
    report.write("out")
    assert links() == ["out/report.html"]
    report.to_html("java:x'\"<b>/#1?.html")
    assert links() == ["java%3Ax%27%22%3Cb%3E/%231%3F.html"]
    report.to_html(tmp_path.parent / "above.html")
    assert links() == ["../above.html"]


def variables(scheme):
    """The CSS variables of a colour scheme."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    found = {}
    for block in blocks[: 1 if scheme == "light" else 2]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    return found


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_has_the_contrast_that_it_has():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa(scheme):
    colour = variables(scheme)
    texts = [(text, ground) for text in ("ink", "muted", "link") for ground in ("page", "panel")]
    for text, ground in texts:
        assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for line in ("free", "inclusive", "exclusive", "floor", "bad", "link"):
        for ground in ("page", "panel"):
            assert contrast(colour[line], colour[ground]) >= 3, (line, ground)
    for badge in re.findall(r"background: (#[0-9a-f]{6})", CSS):
        assert contrast("#ffffff", badge) >= 4.5, badge


def test_the_wheel_holds_the_templates(tmp_path):
    pytest.importorskip("hatchling")
    root = Path(parity.__file__).parent.parent
    if not (root / "pyproject.toml").is_file():
        pytest.skip("needs the checkout")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(words, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    expected = ("base.html", "diff.html", "page.html", "page.css", "page.js", "charts.js",
                "notebook.html",
                "uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE")  # fmt: skip
    assert {f"parity/report/html/templates/{name}" for name in expected} <= set(names)
