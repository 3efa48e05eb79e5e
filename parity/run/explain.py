"""Doubtful calls that are faults after all, and the cause of each fault."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parity.core.exceptions import first_line
from parity.core.verdicts import Diagnosis, Fault
from parity.diagnose.case_record import CaseRecord, record_of
from parity.diagnose.causes import HINTS, UNEXPLAINED
from parity.diagnose.error_map import error_map_of
from parity.diagnose.findings import Finding, Kept
from parity.host.progress import Progress
from parity.judge.faults import Found, find_faults, segment_of
from parity.judge.verdict import Judgement
from parity.run.protocols import Reference

SUSPECTS = 10
"""How many calls whose R is doubtful are looked into."""

ROUNDING = ("norm_variance", "matmul_precision", "dtype", "glue", "unknown")
"""Causes that make no fault of a doubtful R: it is there to measure rounding."""


def resolved(record: CaseRecord, reference: Reference, progress: Progress) -> CaseRecord:
    """Rows in which a doubtful call fails if one change of the reference explains all its error.

    An epsilon of 1e-5 instead of 1e-6 is off by no more than a careless sum is.
    """
    first: dict[int, Found] = {}
    for one in record.found:
        if one.judged.doubtful:
            first.setdefault(one.row.order, one)
    suspects = list(first.values())[:SUSPECTS]
    if suspects:
        progress.stage("doubtful calls", len(suspects))
    guilty: set[int] = set()
    for one in suspects:
        with record.limit:
            cause = _causes(one, record, reference, None)[0].diagnosis.cause
        if cause not in ROUNDING:
            guilty.add(one.row.order)
        progress.advance()
    wrong = [one.judged.doubtful and one.row.order in guilty for one in record.found]
    rows = zip(record.found, wrong, strict=True)
    return replace(record, found=[_failed(one) if fails else one for one, fails in rows])


def _failed(one: Found) -> Found:
    problem = one.judged.problem and one.judged.problem.then(", and one change accounts for it")
    judged = Judgement("FAIL", problem, "exclusive")
    row = replace(one.row, verdict="FAIL", reason=judged.reason)
    return replace(one, row=row, judged=judged)


def faults_of(
    records: Sequence[CaseRecord], reference: Reference, progress: Progress
) -> tuple[Fault, ...]:
    """Faults of all parts of a case, one for each mistake in a module, explained."""
    found = [one for record in records for one in record.found]
    parents = {match.ref.order: match.parent for record in records for match in record.matches}
    faults = find_faults(found, parents)
    if faults:
        progress.stage("diagnosis", len(faults))
    explained: list[Fault] = []
    for fault in faults:
        record = record_of(fault.path, fault.call, records)
        with record.limit:
            explained += _explained(fault, record, reference)
        progress.advance()
    return tuple(explained)


def _explained(fault: Fault, record: CaseRecord, reference: Reference) -> Iterator[Fault]:
    """A fault for each mistake in the call: its cause, the evidence for it, what to do, and where
    it is in the arrays, between the calls inside, and in the source.
    """
    place = (fault.path, fault.call, fault.leaf)
    first = next(x for x in record.found if (x.row.path, x.row.call, x.row.leaf) == place)
    kept, why = _kept(first, record, reference)
    picture, lost = None, ""
    try:
        picture = error_map_of(first, record)
    except Exception as error:  # the report must not be lost for a picture
        lost = f"where in the array is not known: {first_line(error)}"
    findings = _causes(first, record, reference, kept)
    own = fault.magnitude if len(findings) == 1 else ""  # of several mistakes each says its own
    for number, one in enumerate(findings):
        evidence = (one.diagnosis.evidence, lost, why)
        magnitude = (own, one.diagnosis.magnitude)
        yield replace(
            fault,
            parting=number,
            cause=one.diagnosis.cause,
            hint=_hint(one),
            magnitude="; ".join(filter(None, magnitude)),
            evidence="; ".join(filter(None, evidence)),
            segment=_segment(one, first, record) or fault.segment,
            error_map=None if number else picture,
            lines=one.lines,
        )


def _segment(finding: Finding, found: Found, record: CaseRecord) -> str:
    """Between which calls inside a mistake first shows, if it is one of several."""
    if not finding.keys:
        return ""
    shown = [one for one in found.child_inputs if (one.child, one.leaf) in finding.keys]
    if not shown and all(order != found.row.order for order, _ in finding.keys):
        return ""
    parents = {match.ref.order: match.parent for match in record.matches}
    return segment_of(replace(found, child_inputs=tuple(shown)), record.found, parents)


def _hint(finding: Finding) -> str:
    """Advice: to compare the lines, where no cause says more."""
    lines = finding.lines
    if finding.diagnosis.cause in UNEXPLAINED and lines and lines.port and lines.reference:
        return f"compare {lines.port[0].place} with {lines.reference[0].place}"
    return finding.diagnosis.hint


def _kept(found: Found, record: CaseRecord, reference: Reference) -> tuple[Kept | None, str]:
    """One run of the call, or the reason why it is not known where in the source it goes wrong."""
    if record.limit.over:
        return None, "where in the source was not looked for: the time for the diagnosis is over"
    try:
        return reference.keep(found.row.order, record), ""
    except Exception as error:  # the report must not be lost for its lines
        return None, f"where in the source is not known: {first_line(error)}"


def _causes(
    found: Found, record: CaseRecord, reference: Reference, kept: Kept | None
) -> Sequence[Finding]:
    try:
        return reference.diagnose(found, record, kept)
    except Exception as error:
        # the fault is known all the same: its report must not be lost
        container = any(match.parent == found.row.order for match in record.matches)
        text = f"the diagnosis broke off: {first_line(error)}"
        unknown = Diagnosis("glue" if container else "unknown", text, HINTS["unknown"])
        return [Finding(unknown, lines) for lines in (kept.lines if kept else (None,))]
