"""JUnit XML: well-formed whatever the names are, and red exactly where the report is."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from parity.core.verdicts import Coverage
from parity.report import Report
from parity.report.junit import as_junit


def parsed(report):
    """The only suite, and its cases by name; the counts are those of the cases."""
    root = ET.fromstring(as_junit(report))
    assert root.tag == "testsuites"
    (suite,) = root
    cases = suite.findall("testcase")
    for name, tag in (("failures", "failure"), ("errors", "error")):
        assert int(suite.get(name)) == sum(case.find(tag) is not None for case in cases)
    assert int(suite.get("tests")) == len(cases)
    assert report.holds == (suite.get("failures") == suite.get("errors") == "0")
    return suite, {case.get("name"): case for case in cases}


def with_verdicts(report, *verdicts, **options):
    """A report whose first rows have these verdicts, and whose others pass."""
    rows = [replace(row, verdict="PASS", reason="") for row in report.rows]
    for i, verdict in enumerate(verdicts):
        rows[i] = replace(rows[i], verdict=verdict, reason=f"because of {i}", **options)
    return replace(report, rows=tuple(rows), faults=(), weights=())


def test_a_fault_fails_its_module_with_cause_evidence_and_hint(report, tmp_path):
    report.to_junit(tmp_path / "junit.xml")
    assert (tmp_path / "junit.xml").read_text() == as_junit(report)
    suite, cases = parsed(report)
    (fault,) = report.faults
    failure = cases["stem"].find("failure")
    assert failure.get("type") == fault.cause == "weights_value"
    assert failure.get("message") == f"{fault.cause}: {fault.evidence}; {fault.magnitude}"
    assert fault.hint in failure.text
    assert "FAIL: call 0 of __call__: R " in failure.text
    assert cases["stem"].get("classname") == report.name
    assert set(cases) == {row.path or "<root>" for row in report.rows} | {"coverage"}
    said = {one.get("name"): one.get("value") for one in suite.find("properties")}
    assert said["versions.torch"].startswith("2.")
    assert said["verdict"] == "FAIL"
    assert float(suite.get("time")) == report.facts["seconds"]


@pytest.mark.parametrize("verdict", ["PASS", "WARN", "UNKNOWN", "FAIL"])
def test_what_each_verdict_becomes(verdict, report):
    changed = with_verdicts(report, verdict)
    _, cases = parsed(changed)
    case = cases[report.rows[0].path or "<root>"]
    found = {child.tag: child for child in case}
    tag = {"PASS": None, "WARN": "system-out", "UNKNOWN": "error", "FAIL": "failure"}[verdict]
    assert set(found) == {tag} - {None}
    if tag:
        assert "because of 0" in found[tag].text


def test_an_output_that_one_side_lacks_is_a_warning(report):
    changed = with_verdicts(report, "UNKNOWN", one_sided="port")
    assert changed.verdict == "WARN"
    _, cases = parsed(changed)
    assert "because of 0" in cases[report.rows[0].path or "<root>"].find("system-out").text


def test_what_has_no_counterpart_fails(report):
    many = tuple(f"module{i}" for i in range(30))
    changed = replace(with_verdicts(report), coverage=replace(report.coverage, unmatched=many))
    _, cases = parsed(changed)
    failure = cases["coverage"].find("failure")
    assert (
        failure.get("message")
        == "mapping incomplete: without a counterpart are 30 modules (module0)"
    )
    assert "**unmatched module**: module29" in failure.text
    nothing = Report("r", (), (), Coverage(0, (), {}, (), {}, 0, 0), {}, {})
    _, cases = parsed(nothing)
    assert cases["coverage"].find("failure").get("message") == "nothing was compared"


def test_hostile_characters_are_escaped(report):
    hostile = "<a b='\"'>&amp; ]]> \x00\x1b[31m\x0b \ud800 \ufffe \U0001f600 \n end"
    kept = "<a b='\"'>&amp; ]]> \\x00\\x1b[31m\\x0b \\ud800 \\ufffe \U0001f600 \\n end"
    row = replace(report.rows[0], path=hostile, reason=hostile, verdict="FAIL", case=hostile)
    fault = replace(report.faults[0], path=hostile, evidence=hostile, hint=hostile, segment=hostile)
    changed = replace(report, name=hostile, rows=(row,), faults=(fault,), facts={hostile: hostile})
    suite, cases = parsed(changed)
    assert suite.get("name") == kept
    failure = cases[kept].find("failure")
    assert kept in failure.get("message")
    assert failure.text.count(kept) == 6
    assert {one.get("name"): one.get("value") for one in suite.find("properties")}[kept] == kept
    as_junit(changed).encode()
