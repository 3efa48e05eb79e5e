"""From figures to a grade, a verdict and its reason; limits on R stand in `limits`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parity.core.calls import LeafMatch
from parity.core.limits import r_limit as limit_of
from parity.core.measurements import UNSTEADY, ChildInput, Exclusive, Inclusive, Metrics
from parity.core.pair import Rung
from parity.core.verdicts import Verdict

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

NOT_EXACT = "the reference only moves data, and the port changes it"


@dataclass(frozen=True)
class Judgement:
    """Verdict on one row, and by what a FAIL shows a mistake of the call itself.

    `exclusive`: its own code goes wrong. `inclusive`: it does, or code inside it that was not
    compared call by call. `""`: the mistake is elsewhere.
    """

    verdict: Verdict
    reason: str = ""
    blame: Literal["", "exclusive", "inclusive"] = ""
    doubtful: bool = False
    """Whether the error may be rounding or a small mistake."""


@dataclass(frozen=True)
class Errors:
    """What was measured of one output leaf; `handed` is what its call handed on otherwise.

    `container` says that calls inside it were compared too.
    """

    free: Metrics | None = None
    inclusive: Inclusive | None = None
    exclusive: Exclusive | None = None
    handed: Sequence[ChildInput] = ()
    container: bool = False
    excused: bool = True
    """Whether what the call returns, where it holds, excuses its own code."""


def grade(mae: float) -> str:
    """The name of an MAE's grade; NaN and infinity are `severe`, minus infinity (none) has none."""
    if mae < 0:
        return ""
    return next((name for name, limit in GRADES if mae < limit), "severe")


def graded_mae(errors: Sequence[Inclusive | Exclusive | Metrics | None]) -> float:
    """The first MAE that was measured of the inclusive, exclusive and free-running one, in this
    order; infinite if none was because a call could not be made again, NaN if there is none.
    """
    found = [one for one in errors if one is not None]
    failed = any(isinstance(one, (Inclusive, Exclusive)) and one.problem for one in found)
    measured = (one.mae for one in found if not math.isnan(one.mae))
    return next(measured, math.inf if failed else math.nan)


def fail_limit(kind: str) -> float:
    """R above this fails."""
    return limit_of(kind).fail


def judge(
    kind: str,
    leaf: LeafMatch,
    errors: Errors,
    *,
    rung: Rung | None = None,
    r_limit: float | None = None,
) -> Judgement:
    """Judge one output leaf.

    `rung` limits the MAE; `r_limit` replaces it and the limits by kind: only the distance from
    float64 counts then. Without an exclusive error only a limit on MAE can fail a leaf, and only
    equality pass it.
    """
    if leaf.problem:
        return _unmeasured(leaf)
    if leaf.ref.buffer is not None and 0 in leaf.ref.buffer.shape and not errors.handed:
        return Judgement("PASS")  # shape and type are all that there is
    free, inclusive, exclusive = errors.free, errors.inclusive, errors.exclusive
    figures = inclusive or free
    limited = rung if r_limit is None else None
    if free is not None and free.nonfinite and not _bad(exclusive) and not _bad(inclusive):
        # from before, which takes nothing from what the call's own code does to right inputs
        own = None if exclusive is None else _own(kind, errors, r_limit)
        text = f"{free.nonfinite} entries differ in being finite, free-running"
        return own if own is not None and own.blame else Judgement("FAIL", text)
    if limited is not None:
        failure = _over_rung(limited, errors)
        if failure is not None:
            own = _own(kind, errors, None) if exclusive is not None else None
            return own if own is not None and own.blame == "exclusive" else failure
    if exclusive is None:
        if figures is None or math.isnan(figures.mae):
            return Judgement("UNKNOWN", _nothing(figures))
        unsure = Judgement("UNKNOWN", "free-running error alone does not tell whose it is")
        return Judgement("PASS") if figures.mae == 0 else unsure
    return _own(kind, errors, r_limit) or _inside(kind, leaf, errors, r_limit)


def excused(judged: Judgement, around: Sequence[Inclusive], limit: float) -> Judgement:
    """A tap's judgement, given what the call around it returns with all that is inside it.

    Code that stands before the tap on one side and after it on the other is no mistake.
    """
    holds = all(
        one.mae == 0
        or (one.r <= limit and _steady(one) and not _fails(one, limit) and not _unknown(one))
        for one in around
    )
    if judged.blame != "exclusive" or not around or not holds:
        return judged
    return Judgement("WARN", f"{judged.reason}, but what the call around it returns holds")


def _own(kind: str, errors: Errors, r_limit: float | None) -> Judgement | None:
    """The call's own code, by what it returns and hands on; `None` if nothing is wrong with it."""
    limit = fail_limit(kind) if r_limit is None else r_limit
    found = [("", error) for error in (errors.exclusive,) if error is not None]
    found += [(f" in `{x.leaf}` of `{x.path}`", x.error) for x in errors.handed]
    for where, error in found:
        if error.unsteady:
            text = f"PyTorch is {error.floor_rel_l2:.2g} from its own float64 run{where}"
            return Judgement("UNKNOWN", f"{text}: random, or in train mode? Call .eval() on both")
        failure = _failure(error, limit)
        if not failure:
            if where and error.problem:
                return Judgement("UNKNOWN", error.problem + where)
            continue
        inclusive = errors.inclusive
        if errors.container and inclusive is not None and _unknown(inclusive):
            return Judgement(
                "UNKNOWN", f"{failure}{where}; what the call returns: {inclusive.problem}"
            )
        holds = inclusive is not None and _steady(inclusive) and not _fails(inclusive, limit)
        if errors.container and holds and errors.excused:
            return Judgement("WARN", f"{failure}{where}, but what the call returns holds")
        return Judgement("FAIL", failure + where, "exclusive")
    return None


def _failure(error: Exclusive, limit: float) -> str:
    if error.nonfinite:
        return f"{error.nonfinite} entries differ in being finite"
    if error.problem.startswith(("shape", "value")):
        return error.problem
    if error.r > limit:
        return f"R {error.r:.3g} > {limit:g}"
    return NOT_EXACT if error.moved and error.mae > 0 else ""


def _fails(inclusive: Inclusive, limit: float) -> bool:
    return inclusive.r > limit or inclusive.nonfinite > 0 or inclusive.problem.startswith("shape")


def _steady(inclusive: Inclusive) -> bool:
    return not inclusive.floor_rel_l2 > UNSTEADY


def _unknown(inclusive: Inclusive) -> bool:
    return bool(inclusive.problem) and not inclusive.problem.startswith("shape")


def _inside(kind: str, leaf: LeafMatch, errors: Errors, r_limit: float | None) -> Judgement:
    """A call whose own code is right as far as it was measured."""
    exclusive, inclusive = errors.exclusive, errors.inclusive
    assert exclusive is not None
    limit = fail_limit(kind) if r_limit is None else r_limit
    if exclusive.problem:
        return Judgement("UNKNOWN", exclusive.problem)
    if math.isnan(exclusive.mae):
        return Judgement("UNKNOWN", _nothing(exclusive))
    if leaf.ref.buffer is not None and leaf.ref.buffer.dtype.kind in "biu":
        same = exclusive.mae == 0
        return Judgement("PASS" if same else "FAIL", "" if same else "exact values differ",
                         "" if same else "exclusive")  # fmt: skip
    if inclusive is not None and errors.container and _fails(inclusive, limit):
        text = f"R {inclusive.r:.3g} > {limit:g} with all that is inside it"
        return Judgement("FAIL", text, "inclusive")
    if inclusive is not None and errors.container and _unknown(inclusive) and inclusive.mae >= 0:
        return Judgement("UNKNOWN", inclusive.problem)  # far from the reference, for what it knows
    if math.isnan(exclusive.r) and (not exclusive.bounded or r_limit is not None):
        return Judgement("UNKNOWN", "the distance from float64 could not be measured")
    warn = limit_of(kind).warn
    if r_limit is None and exclusive.r > warn:
        return Judgement("WARN", f"R {exclusive.r:.3g} > {warn:g}", doubtful=True)
    if exclusive.part:
        return Judgement("WARN", exclusive.part)
    return Judgement("PASS")


def _bad(error: Exclusive | Inclusive | None) -> bool:
    return error is not None and error.nonfinite > 0


def _nothing(figures: object) -> str:
    problem = getattr(figures, "problem", "")
    return problem or "nothing to compare: no entry is finite, or there is none"


def _over_rung(rung: Rung, errors: Errors) -> Judgement | None:
    """What a rung's limit says: it is meant for outputs of a size up to 1, and grows with others.

    Trained weights have outputs of size 16, where float32 itself is off by 1e-6.
    """
    free = errors.free
    size = 1.0 if free is None or not free.ref_rms > 1 else free.ref_rms
    limit, at = rung.limit * size, f" x size {size:.2g}" if size > 1 else ""
    own = [one for one in (errors.inclusive, errors.exclusive) if one is not None]
    mae = graded_mae(own or (free,))
    lost = math.isinf(mae) and not any(one.nonfinite for one in own)
    if mae > limit and not lost:
        text = f"MAE {mae:.1e} > {rung.limit:g}{at}, rung {rung.name}"
        return Judgement("FAIL", text, "inclusive")
    if rung.free and free is not None and free.mae > limit:
        text = f"free-running MAE {free.mae:.1e} > {rung.limit:g}{at}, rung {rung.name}"
        return Judgement("FAIL", text)
    # free-running, what was wrong before counts too: it clears a call, and blames none
    cleared = free is not None and free.mae <= limit
    return Judgement("UNKNOWN", _nothing(own[0])) if lost and not cleared else None


def _unmeasured(leaf: LeafMatch) -> Judgement:
    if leaf.problem.startswith(("shape", "dtype", "value")):
        return Judgement("FAIL", leaf.problem, "exclusive")
    return Judgement("UNKNOWN", leaf.problem)
