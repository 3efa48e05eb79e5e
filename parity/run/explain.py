"""Which doubtful calls are faults, and why each fault is one."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from parity.core.error_map import ErrorMap
from parity.core.exceptions import first_line
from parity.core.verdicts import Diagnosis, Fault
from parity.diagnose.error_map import error_map_of
from parity.diagnose.scene import HINTS, Scene
from parity.host.progress import Progress
from parity.judge.faults import Found
from parity.judge.verdict import Judgement

SUSPECTS = 10
"""How many calls whose R is doubtful are looked into."""

ROUNDING = ("norm_variance", "matmul_precision", "dtype", "glue", "unknown")
"""Causes that make no fault of a doubtful R: it is there to measure rounding."""


Diagnose = Callable[[Found, Scene], Diagnosis]
"""Finds the cause of what one call gets wrong."""


def settled(
    found: Sequence[Found], scene: Scene, diagnose: Diagnose, progress: Progress
) -> list[Found]:
    """Doubtful calls are faults if one change of the reference accounts for all that they do.

    An epsilon of 1e-5 instead of 1e-6 is off by no more than a careless sum is.
    """
    doubtful = [one for one in found if one.judged.doubtful]
    orders = list(dict.fromkeys(one.row.order for one in doubtful))[:SUSPECTS]
    if orders:
        progress.stage("doubtful calls", len(orders))
    guilty: set[int] = set()
    for order in orders:
        first = next(one for one in doubtful if one.row.order == order)
        if _why(first, scene, diagnose).cause not in ROUNDING:
            guilty.add(order)
        progress.advance()
    return [_guilty(one) if one.judged.doubtful and one.row.order in guilty else one
            for one in found]  # fmt: skip


def _guilty(one: Found) -> Found:
    problem = one.judged.problem and one.judged.problem.then(", and one change accounts for it")
    judged = Judgement("FAIL", problem, "exclusive")
    row = replace(one.row, verdict="FAIL", reason=judged.reason)
    return replace(one, row=row, judged=judged)


def explained(
    fault: Fault, found: Sequence[Found], scene: Scene, diagnose: Diagnose, progress: Progress
) -> Fault:
    """The fault with its cause, the evidence for it, what to do, and where in its arrays it is."""
    first = next(
        one for one in found
        if (one.row.path, one.row.call, one.row.leaf) == (fault.path, fault.call, fault.leaf)
    )  # fmt: skip
    result = _why(first, scene, diagnose)
    progress.advance()
    picture, lost = _error_map(first, scene)
    evidence = "; ".join(filter(None, (result.evidence, fault.evidence, lost)))
    return replace(
        fault, cause=result.cause, hint=result.hint, evidence=evidence, error_map=picture
    )


def _error_map(found: Found, scene: Scene) -> tuple[ErrorMap | None, str]:
    """Where the error lies, or why that is not known."""
    try:
        return error_map_of(found, scene), ""
    except Exception as error:  # the report must not be lost for a picture
        return None, f"where in the array is not known: {first_line(error)}"


def _why(found: Found, scene: Scene, diagnose: Diagnose) -> Diagnosis:
    try:
        return diagnose(found, scene)
    except Exception as error:
        # the fault is known all the same: its report must not be lost
        container = any(match.parent == found.row.order for match in scene.matches)
        text = f"the diagnosis broke off: {first_line(error)}"
        return Diagnosis("glue" if container else "unknown", text, HINTS["unknown"])
