"""From gradients to rows, verdicts and faults."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from parity.core.calls import Leaf, LeafMatch, Match
from parity.core.measurements import ChildInput
from parity.core.metrics import compare_arrays, distance
from parity.core.pair import Case
from parity.core.verdicts import GRADIENTS, Fault, Row
from parity.gradients.cause import cause_of
from parity.gradients.measure import Measured
from parity.gradients.noise import Subject, scored
from parity.gradients.protocol import differentiable
from parity.judge.faults import Found, find_faults
from parity.judge.verdict import Errors, Judgement, fail_limit, grade, judge
from parity.measure.inclusive import SLACK
from parity.measure.noise import bounded

NEARER = 0.1
"""A call's own error is excused if all that it hands back is nearer by this factor, or right by any
measure: what jumps, on either side, makes R small where the same error is still there."""


def judge_gradients(
    case: Case, measured: Measured, faulty: Collection[str]
) -> tuple[Sequence[Row], tuple[Fault, ...]]:
    """The rows of all calls, and one fault per module, in the order of a backward pass.

    `faulty` are modules whose forward code is at fault: it is named, and they are not twice.
    """
    tensors: dict[int, list[Subject]] = defaultdict(list)
    for subject in measured.tensors():
        tensors[subject.match.ref.order].append(subject)
    handed = _handed(measured)
    found: list[Found] = []
    subjects: dict[tuple[int, str], Subject] = {}
    for match in measured.matches:
        order = match.ref.order
        back = handed[order]
        own = _named([*measured.inputs(match), *tensors[order]])
        own = own or _without_row(match, back, measured)
        subjects |= {(order, _leaf(subject)): subject for subject in own}
        found += _judged(case, match, own, [one for one, _ in back], measured)
    parents = {match.ref.order: match.parent for match in measured.matches}
    by_row = {(x.row.path, x.row.call, x.row.leaf): x for x in found}
    faults = []
    for fault in reversed(find_faults(found, parents)):
        if fault.path not in faulty:
            one = by_row[fault.path, fault.call, fault.leaf]
            subject = subjects[one.row.order, one.row.leaf]
            faults.append(_explained(fault, one, subject, handed[one.row.order], measured))
    return [one.row for one in found], tuple(faults)


def _handed(measured: Measured) -> dict[int, list[tuple[ChildInput, Subject]]]:
    """What calls hand back out of their limit, by their `order`."""
    kinds = {match.ref.order: match.ref.kind for match in measured.matches}
    found: dict[int, list[tuple[ChildInput, Subject]]] = defaultdict(list)
    for match in measured.matches:
        for subject in measured.handed(match):
            error = subject.own
            if error.fails(fail_limit(kinds[match.parent])) or error.unsteady or error.problem:
                own = ChildInput(
                    match.parent, match.ref.order, match.ref.path, _leaf(subject), "", error
                )
                found[match.parent].append((own, subject))
    return found


def _named(subjects: Sequence[Subject]) -> list[Subject]:
    """The gradients of one call; a parameter may have the name of an input."""
    names = [subject.name for subject in subjects]
    return [
        replace(one, name=f"self.{one.name}") if one.name in names[:at] else one
        for at, one in enumerate(subjects)
    ]


def _without_row(
    match: Match, back: Sequence[tuple[ChildInput, Subject]], measured: Measured
) -> list[Subject]:
    """A line for a call of which no input has a gradient, if there is something to say of it."""
    if back:
        return [replace(back[0][1], match=match, name="")]
    why = measured.why(match)
    if why and any(map(differentiable, match.ref.outputs)):
        return [Subject(match, "", np.zeros((), np.float32), None, problem=why)]
    return []


def _leaf(subject: Subject) -> str:
    return f"grad({subject.name})"


def _judged(
    case: Case,
    match: Match,
    subjects: Sequence[Subject],
    handed: Sequence[ChildInput],
    measured: Measured,
) -> Sequence[Found]:
    kind, limit = match.ref.kind, fail_limit(match.ref.kind)
    container = match.ref.order in measured.run.whole
    far = bool(handed) or any(one.own.fails(limit) or _far(one, limit) for one in subjects)
    inside, off = None, 0.0
    if container and far and not measured.why(match):
        inside, off = measured.inside(match)
    wrong = [one.error.rel_l2 for one in handed if one.error.fails(limit)]
    found = []
    for subject in subjects:
        error = subject.own
        inclusive = error
        if container and subject.whole is not None and not error.problem:
            inclusive = scored(subject.ref, subject.whole, None)
        if inside is not None:
            inclusive = replace(
                inclusive, r=inside.r, problem=inside.problem, nonfinite=inside.nonfinite,
                floor_rel_l2=inside.floor_rel_l2,
            )  # fmt: skip
        free = None
        if subject.free is not None and not error.problem:
            free = compare_arrays(
                subject.ref if subject.total is None else subject.total, subject.free
            )
        own = min([*wrong, *([error.rel_l2] if error.fails(limit) else [])], default=math.inf)
        errors = Errors(free, inclusive, error, handed, container, lenient=off <= NEARER * own)
        leaf = Leaf(_leaf(subject), measured.store.put(subject.ref))
        judged = judge(kind, LeafMatch(leaf, leaf), errors)
        found.append(Found(_row(case, subject, errors, judged), judged, tuple(handed)))
    return found


def _far(subject: Subject, limit: float) -> bool:
    """Whether what is inside the call may be out of its limit."""
    if subject.whole is None or subject.problem:
        return False
    error = distance(subject.ref, subject.whole)[1]
    return not bounded(error, SLACK * limit, subject.ref.dtype)


def _row(case: Case, subject: Subject, errors: Errors, judged: Judgement) -> Row:
    match = subject.match
    assert errors.inclusive is not None
    return Row(
        rung="",
        case=case.name + GRADIENTS,
        path=match.ref.path,
        nnx_path=match.port.path,
        kind=match.ref.kind,
        call=match.ref.number,
        leaf=_leaf(subject),
        shape=subject.ref.shape,
        dtype=subject.ref.dtype.name,
        metrics=errors.free,
        inclusive=errors.inclusive,
        exclusive=errors.exclusive,
        gain=float("nan"),
        grade=grade(errors.inclusive.mae),
        verdict=judged.verdict,
        reason=judged.reason,
        order=match.ref.order,
        parent=match.parent,
        limited=False,
        handed=max((x.error.rel_l2 for x in errors.handed if x.error.mae >= 0), default=0.0),
    )


def _explained(
    fault: Fault,
    found: Found,
    subject: Subject,
    handed: Sequence[tuple[ChildInput, Subject]],
    measured: Measured,
) -> Fault:
    """The fault, with which gradient goes wrong, between which calls, and why."""
    match, reason = subject.match, found.judged.reason
    inside = [m for m in measured.matches if m.parent == match.ref.order]
    segment, what = "", f"the gradient of `{subject.name}`"
    own = bool(subject.name) and subject.own.fails(fail_limit(match.ref.kind))
    if found.judged.blame == "inclusive":
        what += ", with all that is inside,"
        subject = replace(subject, port=subject.whole, wide=None)
    elif handed and not own:
        first, subject = handed[-1]
        to = measured.goes_to(subject.match, subject.name)
        after = next((m for m in inside if [m.ref.order] == list(to)), None)
        path = _short(first.path, match)
        segment = f"after `{path}`"
        if after is not None:  # it goes nowhere else
            segment = f"between `{path}` and the input of `{_short(after.ref.path, match)}`"
        what = f"what it hands back to `{path}`"
    cause, text, hint = cause_of(subject, container=bool(inside))
    error = subject.own
    evidence = f"{what} is off by {error.rel_l2:.1e} ({reason})"
    if text:
        evidence = f"{evidence}: {text}"
    forward = measured.forward(match)
    if not bounded(forward, SLACK * fail_limit(match.ref.kind), subject.ref.dtype):
        evidence += f"; what the call returns is off by {forward:.1e} too: look at that first"
    return replace(fault, segment=segment, evidence=evidence, cause=cause, hint=hint)


def _short(path: str, match: Match) -> str:
    return path.removeprefix(f"{match.ref.path}." if match.ref.path else "")
