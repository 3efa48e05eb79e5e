"""From figures to a grade, a verdict and its reason. All limits of the harness stand here."""

import math
from dataclasses import dataclass

from parity.records import Inclusive, LeafMatch, Metrics, Rung, Verdict

GRADES: tuple[tuple[str, float], ...] = (
    ("perfect", 1e-6),
    ("excellent", 1e-4),
    ("good", 1e-3),
    ("warning", 1e-2),
    ("attention", 1e-1),
    ("severe", math.inf),
)
"""Grades of an MAE, each up to but not including its limit; best first."""

MEANINGS = {
    "perfect": "same computation",
    "excellent": "floating-point noise",
    "good": "small difference, acceptable in production",
    "warning": "look at it",
    "attention": "accumulated error, improve",
    "severe": "implementation error, must be fixed",
}

R_FAIL = {"norm": 30.0, "other": 10.0}
R_WARN = {"norm": 10.0, "other": 3.0}
"""Limits on R. A correct norm of a nearly constant input reaches 10, one with a mistake starts at
268; every other correct module stays below 8, every mistake known above 297."""


@dataclass(frozen=True)
class Judgement:
    """Verdict on one row; `own` says that the inclusive error is to blame."""

    verdict: Verdict
    reason: str = ""
    own: bool = False


def grade(mae: float) -> str:
    """The name of an MAE's grade; NaN and infinity are `severe`."""
    return next((name for name, limit in GRADES if mae < limit), "severe")


def family(kind: str) -> str:
    """`norm` or `other`: which limits on R hold for a module class."""
    return "norm" if "norm" in kind.lower() else "other"


def fail_limit(kind: str) -> float:
    """R above this fails."""
    return R_FAIL[family(kind)]


def judge(
    kind: str,
    leaf: LeafMatch,
    free: Metrics | None,
    inclusive: Inclusive | None,
    *,
    rung: Rung | None = None,
    wanted: str | None = None,
    r_limit: float | None = None,
) -> Judgement:
    """Judge one output leaf.

    `rung` limits the MAE, `wanted` is the worst grade that is accepted, `r_limit` replaces both
    and the limits by kind: only the distance from float64 counts then.
    """
    if leaf.problem:
        return _unmeasured(leaf)
    if inclusive is not None and inclusive.problem:
        if inclusive.problem.startswith("shape"):
            return Judgement("FAIL", inclusive.problem, own=True)
        return Judgement("UNKNOWN", inclusive.problem)
    figures = inclusive or free
    if figures is None or math.isnan(figures.mae):
        return Judgement("UNKNOWN", "nothing to compare: the array is empty or was not measured")
    if figures.nonfinite:
        return Judgement("FAIL", f"{figures.nonfinite} entries differ in being finite", own=True)
    if free is not None and free.nonfinite:
        return Judgement("FAIL", f"{free.nonfinite} entries differ in being finite, free-running")
    exact = leaf.ref.buffer is not None and leaf.ref.buffer.dtype.kind in "biu"
    if exact and figures.mae > 0:
        return Judgement("FAIL", "exact values differ", own=True)
    r = inclusive.r if inclusive is not None else math.nan
    if r_limit is not None:
        return _over("R", r, r_limit) or Judgement("PASS")
    failure = _over("R", r, fail_limit(kind))
    if failure is None and rung is not None:
        failure = _over(f"MAE, rung {rung.name},", figures.mae, rung.limit)
        if failure is None and rung.free and free is not None and free.mae > rung.limit:
            text = f"free-running MAE {free.mae:.1e} > {rung.limit:g}, rung {rung.name}"
            failure = Judgement("FAIL", text)
    if failure is None and wanted is not None:
        failure = _over(f"MAE, grade {wanted},", figures.mae, dict(GRADES)[wanted])
    if failure is not None:
        return failure
    limit = R_WARN[family(kind)]
    return Judgement("WARN", f"R {r:.1f} > {limit:g}") if r > limit else Judgement("PASS")


def _over(name: str, value: float, limit: float) -> Judgement | None:
    if value > limit:
        return Judgement("FAIL", f"{name} {value:.1e} > {limit:g}", own=True)
    return None


def _unmeasured(leaf: LeafMatch) -> Judgement:
    if leaf.declared:
        return Judgement("PASS", f"declared: {leaf.problem}")
    if leaf.problem.startswith(("shape", "dtype", "value")):
        return Judgement("FAIL", leaf.problem, own=True)
    return Judgement("UNKNOWN", leaf.problem)
