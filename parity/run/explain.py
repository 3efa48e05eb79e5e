"""Doubtful calls that are faults after all, and the cause of each fault."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from parity.core.exceptions import first_line
from parity.core.lines import Lines
from parity.core.verdicts import Diagnosis, Fault
from parity.diagnose.case_record import CaseRecord, record_of
from parity.diagnose.causes import HINTS
from parity.diagnose.error_map import error_map_of
from parity.host.progress import Progress
from parity.judge.faults import Found, find_faults
from parity.judge.verdict import Judgement

SUSPECTS = 10
"""How many calls whose R is doubtful are looked into."""

ROUNDING = ("norm_variance", "matmul_precision", "dtype", "glue", "unknown")
"""Causes that make no fault of a doubtful R: it is there to measure rounding."""

UNEXPLAINED = ("", "glue", "unknown")
"""Causes that say where the error is, and not what it is."""

Diagnose = Callable[[Found, CaseRecord], Diagnosis]
"""Finds the cause of what one call gets wrong."""

LinesOf = Callable[[int, CaseRecord], Sequence[Lines]]
"""Finds where in the source a call goes wrong, by its `order`."""


def resolved(record: CaseRecord, diagnose: Diagnose, progress: Progress) -> CaseRecord:
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
        if _cause(one, record, diagnose).cause not in ROUNDING:
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
    records: Sequence[CaseRecord], diagnose: Diagnose, lines_of: LinesOf, progress: Progress
) -> tuple[Fault, ...]:
    """Faults of all parts of a case, one for each module, explained."""
    found = [one for record in records for one in record.found]
    parents = {match.ref.order: match.parent for record in records for match in record.matches}
    faults = find_faults(found, parents)
    if faults:
        progress.stage("diagnosis", len(faults))
    explained: list[Fault] = []
    for fault in faults:
        explained += _explained(fault, records, diagnose, lines_of)
        progress.advance()
    return tuple(explained)


def _explained(
    fault: Fault, records: Sequence[CaseRecord], diagnose: Diagnose, lines_of: LinesOf
) -> Iterator[Fault]:
    """The fault with its cause, the evidence for it, what to do, and where in its arrays and in
    the source it is; then one for each further mistake in the same call, if no one change of the
    reference accounts for the whole error.
    """
    record, place = record_of(fault.path, fault.call, records), (fault.path, fault.call, fault.leaf)
    first = next(x for x in record.found if (x.row.path, x.row.call, x.row.leaf) == place)
    result = _cause(first, record, diagnose)
    picture, lost = None, ""
    try:
        picture = error_map_of(first, record)
    except Exception as error:  # the report must not be lost for a picture
        lost = f"where in the array is not known: {first_line(error)}"
    lines, why = _lines(first, record, lines_of)
    if lines and result.cause not in UNEXPLAINED:  # one change accounts for all: one mistake
        lines = (reduce(Lines.joined, lines),)
    hint = _hint(result, lines)
    evidence = "; ".join(filter(None, (result.evidence, fault.evidence, lost, why)))
    yield replace(
        fault,
        cause=result.cause,
        hint=hint,
        evidence=evidence,
        error_map=picture,
        lines=lines[0] if lines else None,
    )
    for number, more in enumerate(lines[1:], 1):
        text = "with the reference's value put in at the line before, the call parts here again"
        hint = _hint(Diagnosis("", "", HINTS["unknown"]), [more])
        yield replace(fault, parting=number, lines=more, evidence=text, hint=hint)


def _hint(result: Diagnosis, lines: Sequence[Lines]) -> str:
    """Advice: to compare the lines, where no cause says more."""
    if result.cause in UNEXPLAINED and lines and lines[0].port and lines[0].reference:
        port, reference = lines[0].port[0], lines[0].reference[0]
        return f"compare {port.place} with {reference.place}"
    return result.hint


def _lines(found: Found, record: CaseRecord, lines_of: LinesOf) -> tuple[Sequence[Lines], str]:
    """The source lines of each mistake in a call, or the reason why they are not known."""
    try:
        return lines_of(found.row.order, record), ""
    except Exception as error:  # the report must not be lost for its lines
        return (), f"where in the source is not known: {first_line(error)}"


def _cause(found: Found, record: CaseRecord, diagnose: Diagnose) -> Diagnosis:
    try:
        return diagnose(found, record)
    except Exception as error:
        # the fault is known all the same: its report must not be lost
        container = any(match.parent == found.row.order for match in record.matches)
        text = f"the diagnosis broke off: {first_line(error)}"
        return Diagnosis("glue" if container else "unknown", text, HINTS["unknown"])
