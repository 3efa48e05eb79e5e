"""Doubtful calls that are faults after all, and the cause of each fault."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from parity.core.error_map import ErrorMap
from parity.core.exceptions import first_line
from parity.core.lines import Lines
from parity.core.verdicts import Diagnosis, Fault
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.causes import HINTS
from parity.diagnose.error_map import error_map_of
from parity.host.progress import Progress
from parity.judge.faults import Found, find_faults
from parity.judge.verdict import Judgement
from parity.run.part import Part, part_of

SUSPECTS = 10
"""How many calls whose R is doubtful are looked into."""

ROUNDING = ("norm_variance", "matmul_precision", "dtype", "glue", "unknown")
"""Causes that make no fault of a doubtful R: it is there to measure rounding."""


Diagnose = Callable[[Found, CaseRecord], Diagnosis]
"""Finds the cause of what one call gets wrong."""

LinesOf = Callable[[int, CaseRecord], Sequence[Lines]]
"""Finds where in the source a call goes wrong, by its `order`."""


def resolved(
    found: Sequence[Found], scene: CaseRecord, diagnose: Diagnose, progress: Progress
) -> list[Found]:
    """Rows in which a doubtful call fails if one change of the reference explains all its error.

    An epsilon of 1e-5 instead of 1e-6 is off by no more than a careless sum is.
    """
    first: dict[int, Found] = {}
    for one in found:
        if one.judged.doubtful:
            first.setdefault(one.row.order, one)
    suspects = list(first.values())[:SUSPECTS]
    if suspects:
        progress.stage("doubtful calls", len(suspects))
    guilty: set[int] = set()
    for one in suspects:
        if _cause(one, scene, diagnose).cause not in ROUNDING:
            guilty.add(one.row.order)
        progress.advance()
    return [
        _failed(one) if one.judged.doubtful and one.row.order in guilty else one for one in found
    ]


def _failed(one: Found) -> Found:
    problem = one.judged.problem and one.judged.problem.then(", and one change accounts for it")
    judged = Judgement("FAIL", problem, "exclusive")
    row = replace(one.row, verdict="FAIL", reason=judged.reason)
    return replace(one, row=row, judged=judged)


def faults_of(
    parts: Sequence[Part], diagnose: Diagnose, lines_of: LinesOf, progress: Progress
) -> tuple[Fault, ...]:
    """Faults of all parts of a case, one for each module, explained where they can be."""
    found = [one for part in parts for one in part.found]
    parents = {m.ref.order: m.parent for part in parts for m in part.extent.matches}
    faults = find_faults(found, parents)
    if faults and any(part.scene for part in parts):
        progress.stage("diagnosis", len(faults))
        return tuple(
            one
            for fault in faults
            for one in _explained(fault, parts, diagnose, lines_of, progress)
        )
    return faults


def _explained(
    fault: Fault,
    parts: Sequence[Part],
    diagnose: Diagnose,
    lines_of: LinesOf,
    progress: Progress,
) -> Iterator[Fault]:
    """The fault with its cause, the evidence for it, what to do, and where in its arrays and in
    the source it is; then one for each further mistake in the same call.
    """
    part = part_of(fault, parts)
    if part.scene is None:
        yield fault
        return
    place = fault.path, fault.call, fault.leaf
    first = next(x for x in part.found if (x.row.path, x.row.call, x.row.leaf) == place)
    result = _cause(first, part.scene, diagnose)
    progress.advance()
    picture, lost = _error_map(first, part.scene)
    lines, why = _lines(first, part.scene, lines_of)
    evidence = "; ".join(filter(None, (result.evidence, fault.evidence, lost, why)))
    yield replace(
        fault,
        cause=result.cause,
        hint=result.hint,
        evidence=evidence,
        error_map=picture,
        lines=lines[0] if lines else None,
    )
    for number, more in enumerate(lines[1:], 1):
        text = "with the reference's value put in at the line before, the call parts here again"
        yield replace(fault, parting=number, lines=more, evidence=text, hint=HINTS["unknown"])


def _lines(found: Found, scene: CaseRecord, lines_of: LinesOf) -> tuple[Sequence[Lines], str]:
    """The source lines of each mistake in a call, or the reason why they are not known."""
    try:
        return lines_of(found.row.order, scene), ""
    except Exception as error:  # the report must not be lost for its lines
        return (), f"where in the source is not known: {first_line(error)}"


def _error_map(found: Found, scene: CaseRecord) -> tuple[ErrorMap | None, str]:
    """Error map of a fault, or the reason why there is none."""
    try:
        return error_map_of(found, scene), ""
    except Exception as error:  # the report must not be lost for a picture
        return None, f"where in the array is not known: {first_line(error)}"


def _cause(found: Found, scene: CaseRecord, diagnose: Diagnose) -> Diagnosis:
    try:
        return diagnose(found, scene)
    except Exception as error:
        # the fault is known all the same: its report must not be lost
        container = any(match.parent == found.row.order for match in scene.matches)
        text = f"the diagnosis broke off: {first_line(error)}"
        return Diagnosis("glue" if container else "unknown", text, HINTS["unknown"])
