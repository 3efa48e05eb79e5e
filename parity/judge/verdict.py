"""From figures to a grade, a verdict and its reason; limits on R stand in `limits`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parity.core.calls import LeafMatch
from parity.core.limits import fail_limit
from parity.core.limits import r_limit as limit_of
from parity.core.measurements import UNSTEADY, ChildInput, Error, Metrics
from parity.core.pair import Rung
from parity.core.problems import DIFFERENT, Problem, ProblemKind, not_measured
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


@dataclass(frozen=True)
class Judgement:
    """Verdict on one row, why, and by what a FAIL shows a mistake of the call itself.

    `exclusive`: its local computation is wrong. `inclusive`: it is, or code inside it that was not
    compared call by call. `""`: the mistake is elsewhere.
    """

    verdict: Verdict
    problem: Problem | None = None
    blame: Literal["", "exclusive", "inclusive"] = ""
    doubtful: bool = False
    """True if the error may be rounding or a small mistake."""

    @property
    def reason(self) -> str:
        """The text of the problem, `""` if there is none."""
        return "" if self.problem is None else self.problem.text


@dataclass(frozen=True)
class Errors:
    """All that was measured of one output leaf; `child_inputs` are those that are off.

    `container` says that calls inside it were compared too.
    """

    free: Metrics | None = None
    inclusive: Error | None = None
    exclusive: Error | None = None
    child_inputs: Sequence[ChildInput] = ()
    container: bool = False


def grade(mae: float) -> str:
    """The name of an MAE's grade; NaN and infinity are `severe`, minus infinity (none) has none."""
    if mae < 0:
        return ""
    return next((name for name, limit in GRADES if mae < limit), "severe")


def graded_mae(errors: Sequence[Error | Metrics | None]) -> float:
    """The first MAE that was measured of the inclusive, exclusive and free-running one, in this
    order; infinite if none was because a call could not be made again, NaN if there is none.
    """
    found = [one for one in errors if one is not None]
    failed = any(isinstance(one, Error) and one.problem for one in found)
    measured = (one.mae for one in found if not math.isnan(one.mae))
    return next(measured, math.inf if failed else math.nan)


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
    if leaf.problem is not None:
        return _unmatched(leaf.problem)
    if leaf.ref.empty and not errors.child_inputs:
        return Judgement("PASS")  # shape and type are all that there is
    limit = fail_limit(kind) if r_limit is None else r_limit
    warn = limit_of(kind).warn if r_limit is None else math.inf
    local = _local(errors, limit, warn)
    outer = _nonfinite_before(errors) or (r_limit is None and _over_rung(rung, errors))
    if outer:  # it takes nothing from what the local computation makes of right inputs
        return local if local is not None and local.blame else outer
    if errors.exclusive is None:
        return _free_running(errors.inclusive or errors.free)
    if local is not None:
        return local
    own = _without_local_error(kind, leaf, errors, r_limit)
    doubt = _handed_on(errors.child_inputs, warn)
    in_doubt = own.verdict in ("PASS", "WARN") and not own.doubtful
    return doubt if doubt is not None and in_doubt else own


def downgraded(judged: Judgement, around: Sequence[Error], limit: float) -> Judgement:
    """A tap's judgement, given what the call around it returns with all that is inside it.

    Code that stands before the tap on one side and after it on the other is no mistake.
    """
    holds = all(
        one.mae == 0
        or (one.r <= limit and one.steady and not one.fails(limit) and not one.unmeasured)
        for one in around
    )
    if judged.problem is None or judged.blame != "exclusive" or not around or not holds:
        return judged
    return Judgement("WARN", judged.problem.then(", but what the call around it returns holds"))


def _unmatched(problem: Problem) -> Judgement:
    """A leaf that cannot be compared: its form is wrong, or nothing is known of it."""
    if problem.kind in DIFFERENT:
        return Judgement("FAIL", problem, "exclusive")
    return Judgement("UNKNOWN", problem)


def _nonfinite_before(errors: Errors) -> Judgement | None:
    """Entries that are not finite on one side, where the call got them from those before it."""
    free, own = errors.free, (errors.exclusive, errors.inclusive)
    if free is None or not free.nonfinite or any(one and one.nonfinite for one in own):
        return None
    text = f"{free.nonfinite} entries differ in being finite, free-running"
    return Judgement("FAIL", Problem(ProblemKind.NONFINITE, text))


def _free_running(figures: Error | Metrics | None) -> Judgement:
    """A leaf without an exclusive error: only equality passes."""
    if figures is None or math.isnan(figures.mae):
        return Judgement("UNKNOWN", _nothing(figures))
    if figures.mae == 0:
        return Judgement("PASS")
    text = "free-running error alone does not tell whose it is"
    return Judgement("UNKNOWN", not_measured(text))


def _local(errors: Errors, limit: float, warn: float) -> Judgement | None:
    """The local computation, by outputs and child inputs; `None` if nothing is wrong with it."""
    if errors.exclusive is None:
        return None
    found = [("", errors.exclusive)]
    found += [(f" in `{x.leaf}` of `{x.path}`", x.error) for x in errors.child_inputs]
    for where, error in found:
        if error.unsteady:
            text = f"PyTorch is {error.floor_rel_l2:.2g} from its own float64 run{where}"
            text += ": random, or in train mode? Call .eval() on both"
            return Judgement("UNKNOWN", not_measured(text))
        failure = error.failure(limit)
        if failure is not None:  # what is passed on comes before what is returned
            passed = (x.then(at) for at, one in found[1:] if (x := one.failure(limit)))
            first = next((x for x in passed if x.kind is failure.kind), failure.then(where))
            return _failed(first, errors, limit, warn)
        if where and error.problem is not None:
            return Judgement("UNKNOWN", error.problem.then(where))
    return None


def _failed(failure: Problem, errors: Errors, limit: float, warn: float) -> Judgement:
    """A local error, unless what the call returns holds all the same, if it is not in doubt too."""
    if failure.kind is ProblemKind.FEWER_BITS:  # what it returns may be excused for that
        return Judgement("FAIL", failure, "exclusive")
    whole = errors.inclusive if errors.container else None
    # what is off by more than a steady reference could be needs no float64
    if whole is not None and whole.unmeasured and not whole.rel_l2 > UNSTEADY:
        return Judgement("UNKNOWN", failure.then(f"; what the call returns: {whole.problem}"))
    known = whole is not None and whole.steady and not whole.unmeasured
    if whole is not None and known and not whole.fails(limit):
        text = ", but what the call returns holds"
        return Judgement("WARN", failure.then(text), doubtful=whole.r > warn)
    return Judgement("FAIL", failure, "exclusive")


def _without_local_error(
    kind: str, leaf: LeafMatch, errors: Errors, r_limit: float | None
) -> Judgement:
    """A call whose local computation is right as far as it was measured."""
    exclusive = errors.exclusive
    assert exclusive is not None
    if leaf.ref.empty:
        return Judgement("PASS")
    if exclusive.problem is not None or math.isnan(exclusive.mae):
        return Judgement("UNKNOWN", _nothing(exclusive))
    if leaf.ref.buffer is not None and leaf.ref.buffer.dtype.kind in "biu":
        if exclusive.mae == 0:
            return Judgement("PASS")
        return Judgement("FAIL", _error("exact values differ"), "exclusive")
    limit = fail_limit(kind) if r_limit is None else r_limit
    inside = _subtree(errors.inclusive, limit) if errors.container else None
    return inside or _rounded(kind, exclusive, r_limit)


def _handed_on(child_inputs: Sequence[ChildInput], warn: float) -> Judgement | None:
    """Doubt in what a call passes to those inside it: the same error where its code returns it, as
    a norm that is a module, is in doubt as well.
    """
    for one in child_inputs:
        if one.error.r > warn:
            text = f"R {one.error.r:.3g} > {warn:g} in `{one.leaf}` of `{one.path}`"
            return Judgement("WARN", _error(text), doubtful=True)
    return None


def _subtree(inclusive: Error | None, limit: float) -> Judgement | None:
    """A container whose local computation is right; `None` if the calls inside it are too."""
    if inclusive is None:
        return None
    if inclusive.fails(limit):
        text = f"R {inclusive.r:.3g} > {limit:g} with all that is inside it"
        return Judgement("FAIL", _error(text), "inclusive")
    if inclusive.unmeasured and inclusive.mae >= 0:  # far from the reference, for what it knows
        return Judgement("UNKNOWN", inclusive.problem)
    return None


def _rounded(kind: str, error: Error, r_limit: float | None) -> Judgement:
    """A local error that is under its limit, if it was measured."""
    if math.isnan(error.r) and (not error.bounded or r_limit is not None):
        text = "the distance from float64 could not be measured"
        return Judgement("UNKNOWN", not_measured(text))
    warn = limit_of(kind).warn
    if r_limit is None and error.r > warn:
        return Judgement("WARN", _error(f"R {error.r:.3g} > {warn:g}"), doubtful=True)
    return Judgement("WARN", _error(error.part)) if error.part else Judgement("PASS")


def _error(text: str) -> Problem:
    return Problem(ProblemKind.ERROR, text)


def _nothing(figures: Error | Metrics | None) -> Problem:
    problem = figures.problem if isinstance(figures, Error) else None
    return problem or not_measured("nothing to compare: no entry is finite, or there is none")


def _over_rung(rung: Rung | None, errors: Errors) -> Judgement | None:
    """The judgement by a rung's limit, which is for outputs of a size up to 1, and grows beyond.

    Trained weights have outputs of size 16, where float32 itself is off by 1e-6.
    """
    if rung is None:
        return None
    free_mae, size = math.nan, 1.0
    if errors.free is not None:
        free_mae, size = errors.free.mae, max(1.0, errors.free.ref_rms)
    limit, at = rung.limit * size, f" x size {size:.2g}" if size > 1 else ""
    own = [one for one in (errors.inclusive, errors.exclusive) if one is not None]
    mae = graded_mae(own or (errors.free,))
    lost = math.isinf(mae) and not any(one.nonfinite for one in own)
    if mae > limit and not lost:
        text = f"MAE {mae:.1e} > {rung.limit:g}{at}, rung {rung.name}"
        return Judgement("FAIL", _error(text), "inclusive")
    if rung.free and free_mae > limit:
        text = f"free-running MAE {free_mae:.1e} > {rung.limit:g}{at}, rung {rung.name}"
        return Judgement("FAIL", _error(text))
    # free-running, what was wrong before counts too: it clears a call, and blames none
    return Judgement("UNKNOWN", _nothing(own[0])) if lost and not free_mae <= limit else None
