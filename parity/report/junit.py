"""A report as JUnit XML, which build servers list test by test."""

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

from parity.core.exceptions import escaped
from parity.core.globs import path_name
from parity.core.verdicts import Row
from parity.host.environment import flat
from parity.report.contents import Contents
from parity.report.faults import fault_parts
from parity.report.sections import coverage_lines
from parity.report.table import cut, grouped

Parts = dict[str, tuple[dict[str, str], Iterable[str]]]
"""The parts of a test case: attributes and lines of text by tag."""


def as_junit(report: Contents) -> str:
    """A test case for each module on each rung, and one for the coverage.

    A module fails if one of its calls does: with the cause, the evidence and the hint of its fault
    if its local computation is at fault, else with the reason of its first row that fails. UNKNOWN
    is an error, a WARN is said in what the case printed. The properties are the facts and the
    environment.
    """
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", name=report.name, skipped="0")
    suite.set("time", str(report.facts.get("seconds", 0)))
    properties = ET.SubElement(suite, "properties")
    for key, value in flat({"verdict": report.verdict, **report.facts, **report.environment}):
        ET.SubElement(properties, "property", name=key, value=str(value))
    for (rung, path), rows in grouped(report.rows, lambda row: (row.rung, row.path)).items():
        home = f"{report.name}.{rung}" if rung else report.name
        _add(suite, home, path_name(path), _module(report, path, rows))
    _add(suite, report.name, "coverage", _coverage(report))
    for name, found in (("tests", "testcase"), ("failures", "*/failure"), ("errors", "*/error")):
        suite.set(name, str(len(suite.findall(found))))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{_legal(text)}\n'


def _module(report: Contents, path: str, rows: Sequence[Row]) -> Parts:
    """Failure or error of a module, and what is doubtful about it."""
    parts: Parts = {}
    failing = [row for row in rows if row.verdict == "FAIL"]
    unknown = [row for row in rows if row.verdict == "UNKNOWN" and not row.one_sided]
    doubts = [row for row in rows if row.verdict == "WARN" or row.one_sided]
    fault = next((fault for fault in reversed(report.faults) if fault.path == path), None)
    if fault is not None:
        reason = "; ".join(filter(None, (fault.evidence, fault.magnitude)))
        message = f"{fault.cause}: {reason}" if fault.cause else reason
        said = {"message": message, "type": fault.cause or "unknown"}
        text = (f"{name}: {text}" for name, text in fault_parts(fault).items())
        parts["failure"] = said, (*text, *_lines(failing))
    elif failing:
        parts["failure"] = {"message": failing[0].reason, "type": "FAIL"}, _lines(failing)
    elif unknown:
        parts["error"] = {"message": unknown[0].reason, "type": "UNKNOWN"}, _lines(unknown)
    return parts | ({"system-out": ({}, _lines(doubts))} if doubts else {})


def _coverage(report: Contents) -> Parts:
    parts: Parts = {"system-out": ({}, report.notes)} if report.notes else {}
    if report.coverage.complete and report.rows:
        return parts
    said = {"message": report.missing or "nothing was compared", "type": "coverage"}
    return {"failure": (said, coverage_lines(report.coverage)), **parts}


def _add(suite: ET.Element, home: str, name: str, parts: Parts) -> None:
    case = ET.SubElement(suite, "testcase", classname=home, name=name)
    for tag, (attributes, lines) in parts.items():
        ET.SubElement(case, tag, attributes).text = "\n".join(map(escaped, lines))


def _lines(rows: Sequence[Row]) -> Sequence[str]:
    lines = [
        f"{row.verdict}: call {row.call} of {row.case}"
        f"{f', output `{row.leaf}`' if row.leaf else ''}: {row.reason}"
        for row in rows
    ]
    return cut(lines, "and {} more, all of them in layers.csv")


def _legal(text: str) -> str:
    """The text with an escape for each character that cannot be seen, which XML may not hold."""
    text = re.sub("&#([0-9]+);", lambda found: escaped(chr(int(found[1]))), text)
    return "\n".join(map(escaped, text.split("\n")))
