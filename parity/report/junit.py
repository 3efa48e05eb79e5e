"""A report as JUnit XML, which build servers list test by test."""

import re
from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree as ET

from parity.core.globs import path_name
from parity.core.verdicts import Fault, Row
from parity.host.environment import flat
from parity.report.contents import Contents
from parity.report.sections import coverage_lines, fault_place, fault_reason

LISTED = 20
"""How many rows a test case lists."""


def as_junit(report: Contents) -> str:
    """A test case for each module on each rung, and one for the coverage.

    A module fails if one of its calls does: with the cause, the evidence and the hint of its fault
    if its local computation is at fault, else with the reason of its first row that fails. UNKNOWN
    is an error, a WARN is said in what the case printed. The properties are the facts and the
    environment.
    """
    cases = [*_modules(report), _coverage(report)]
    suite = ET.Element(
        "testsuite",
        name=_legal(report.name),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped="0",
        time=_legal(str(report.facts.get("seconds", 0))),
    )
    properties = ET.SubElement(suite, "properties")
    said = {"verdict": report.verdict, **report.facts, **report.environment}
    for name, value in flat(said):
        ET.SubElement(properties, "property", name=_legal(name), value=_legal(str(value)))
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _modules(report: Contents) -> Iterator[ET.Element]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        groups.setdefault((row.rung, row.path), []).append(row)
    faults = {fault.path: fault for fault in report.faults}
    for (rung, path), rows in groups.items():
        case = _case(f"{report.name}.{rung}" if rung else report.name, path_name(path))
        failing = [row for row in rows if row.verdict == "FAIL"]
        fault = faults.get(path)
        if failing or fault is not None:
            _add(case, "failure", *_failure(fault, failing))
        elif unknown := [row for row in rows if row.verdict == "UNKNOWN" and not row.one_sided]:
            _add(case, "error", unknown[0].reason, "UNKNOWN", _rows(unknown))
        doubts = [row for row in rows if row.verdict == "WARN" or row.one_sided]
        if doubts:
            ET.SubElement(case, "system-out").text = _legal("\n".join(_rows(doubts)))
        yield case


def _failure(fault: Fault | None, rows: Sequence[Row]) -> tuple[str, str, Iterable[str]]:
    """Message, type and text."""
    if fault is None:
        return rows[0].reason, "FAIL", _rows(rows)
    text = (f"{fault_place(fault)}: {fault_reason(fault)}", f"hint: {fault.hint}", *_rows(rows))
    return fault_reason(fault), fault.cause or "unknown", text


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows[:LISTED]:
        leaf = f", output `{row.leaf}`" if row.leaf else ""
        yield f"{row.verdict}: call {row.call} of {row.case}{leaf}: {row.reason}"
    if len(rows) > LISTED:
        yield f"and {len(rows) - LISTED} more, all of them in layers.csv"


def _coverage(report: Contents) -> ET.Element:
    case = _case(report.name, "coverage")
    if not report.coverage.complete or not report.rows:
        lines = coverage_lines(report.coverage)
        _add(case, "failure", report.missing or "nothing was compared", "coverage", lines)
    if report.notes:
        ET.SubElement(case, "system-out").text = _legal("\n".join(report.notes))
    return case


def _case(classname: str, name: str) -> ET.Element:
    return ET.Element("testcase", classname=_legal(classname), name=_legal(name))


def _add(case: ET.Element, what: str, message: str, kind: str, lines: Iterable[str]) -> None:
    found = ET.SubElement(case, what, message=_legal(message), type=_legal(kind))
    found.text = _legal("\n".join(lines))


def _legal(text: str) -> str:
    """The text, with an escape for each character that no XML may hold, escaped or not."""
    return re.sub(
        "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]",
        lambda found: ascii(found.group())[1:-1],
        text,
    )
