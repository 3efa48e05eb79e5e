"""Doubtful calls that are faults after all, and the cause of each fault."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from parity.core.exceptions import first_line
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


Diagnose = Callable[[Found, CaseRecord], Diagnosis]
"""Finds the cause of what one call gets wrong."""


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
    records: Sequence[CaseRecord], diagnose: Diagnose, progress: Progress
) -> tuple[Fault, ...]:
    """Faults of all parts of a case, one for each module, explained."""
    found = [one for record in records for one in record.found]
    parents = {match.ref.order: match.parent for record in records for match in record.matches}
    faults = find_faults(found, parents)
    if faults:
        progress.stage("diagnosis", len(faults))
    return tuple(_explained(fault, records, diagnose, progress) for fault in faults)


def _explained(
    fault: Fault, records: Sequence[CaseRecord], diagnose: Diagnose, progress: Progress
) -> Fault:
    """The fault with its cause, the evidence for it, what to do, and where in its arrays it is."""
    record, place = record_of(fault.path, fault.call, records), (fault.path, fault.call, fault.leaf)
    first = next(x for x in record.found if (x.row.path, x.row.call, x.row.leaf) == place)
    result = _cause(first, record, diagnose)
    progress.advance()
    picture, lost = None, ""
    try:
        picture = error_map_of(first, record)
    except Exception as error:  # the report must not be lost for a picture
        lost = f"where in the array is not known: {first_line(error)}"
    evidence = "; ".join(filter(None, (result.evidence, fault.evidence, lost)))
    return replace(
        fault, cause=result.cause, hint=result.hint, evidence=evidence, error_map=picture
    )


def _cause(found: Found, record: CaseRecord, diagnose: Diagnose) -> Diagnosis:
    try:
        return diagnose(found, record)
    except Exception as error:
        # the fault is known all the same: its report must not be lost
        container = any(match.parent == found.row.order for match in record.matches)
        text = f"the diagnosis broke off: {first_line(error)}"
        return Diagnosis("glue" if container else "unknown", text, HINTS["unknown"])
