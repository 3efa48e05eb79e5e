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
    r_limit: float | None = None,
) -> Judgement:
    """Judge one output leaf.

    `rung` limits the MAE; `r_limit` replaces it and the limits by kind: only the distance from
    float64 counts then. Without an inclusive error only a limit on MAE can fail a leaf, and only
    equality pass it.
    """
    if leaf.problem:
        return _unmeasured(leaf)
    if inclusive is not None and inclusive.problem:
        if inclusive.problem.startswith("shape"):
            return Judgement("FAIL", inclusive.problem, own=True)
        return Judgement("UNKNOWN", inclusive.problem)
    figures = inclusive or free
    if figures is None or math.isnan(figures.mae):
        return Judgement("UNKNOWN", "nothing to compare: no entry is finite, or there is none")
    if figures.nonfinite:
        return Judgement("FAIL", f"{figures.nonfinite} entries differ in being finite", own=True)
    if free is not None and free.nonfinite:
        return Judgement("FAIL", f"{free.nonfinite} entries differ in being finite, free-running")
    if leaf.ref.buffer is not None and leaf.ref.buffer.dtype.kind in "biu":
        same = figures.mae == 0
        return Judgement("PASS") if same else Judgement("FAIL", "exact values differ", own=True)
    if rung is not None and r_limit is None:
        failure = _over_rung(rung, figures, free)
        if failure is not None:
            return failure
    if inclusive is None:
        unsure = Judgement("UNKNOWN", "free-running error alone does not tell whose it is")
        return Judgement("PASS") if figures.mae == 0 else unsure
    if math.isnan(inclusive.r) and (not inclusive.bounded or r_limit is not None):
        return Judgement("UNKNOWN", "the distance from float64 could not be measured")
    limit = fail_limit(kind) if r_limit is None else r_limit
    if inclusive.r > limit:
        return Judgement("FAIL", f"R {inclusive.r:.3g} > {limit:g}", own=True)
    limit = R_WARN[family(kind)]
    if inclusive.r > limit:
        return Judgement("WARN", f"R {inclusive.r:.3g} > {limit:g}")
    return Judgement("PASS")


def _over_rung(rung: Rung, figures: Inclusive | Metrics, free: Metrics | None) -> Judgement | None:
    if figures.mae > rung.limit:
        text = f"MAE {figures.mae:.1e} > {rung.limit:g}, rung {rung.name}"
        return Judgement("FAIL", text, own=True)
    if rung.free and free is not None and free.mae > rung.limit:
        text = f"free-running MAE {free.mae:.1e} > {rung.limit:g}, rung {rung.name}"
        return Judgement("FAIL", text)
    return None


def _unmeasured(leaf: LeafMatch) -> Judgement:
    if leaf.problem.startswith(("shape", "dtype", "value")):
        return Judgement("FAIL", leaf.problem, own=True)
    return Judgement("UNKNOWN", leaf.problem)
