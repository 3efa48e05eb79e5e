"""From gradients to rows, verdicts and faults."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from parity.core.calls import Leaf, LeafMatch, Match
from parity.core.measurements import ChildInput, Error, Metrics
from parity.core.metrics import compare_arrays, distance
from parity.core.pair import Case
from parity.core.verdicts import GRADIENTS, Fault, Row
from parity.gradients.cause import cause_of
from parity.gradients.measure import Measured
from parity.gradients.noise import NEARER, Subject, scored
from parity.gradients.protocol import differentiable
from parity.judge.faults import Found, find_faults
from parity.judge.rows import row_of
from parity.judge.verdict import Errors, fail_limit, judge
from parity.measure.inclusive import SLACK
from parity.measure.noise import bounded

PassedBack = Sequence[tuple[ChildInput, Subject]]
"""Gradients that a call passes back to calls inside it and that are out of their limit."""


def judge_gradients(
    case: Case, measured: Measured, faulty: Collection[str]
) -> tuple[Sequence[Row], tuple[Fault, ...]]:
    """The rows of all calls, and one fault per module, in the order of a backward pass.

    `faulty` are modules whose forward code is at fault: it is named, and they are not twice.
    """
    tensors: dict[int, list[Subject]] = defaultdict(list)
    for subject in measured.subjects.tensors():
        tensors[subject.match.ref.order].append(subject)
    matches, passed = measured.runs.recording.matches, _passed_back(measured)
    found: list[Found] = []
    subjects: dict[tuple[int, str], Subject] = {}
    for match in matches:
        order = match.ref.order
        own = _named([*measured.subjects.inputs(match), *tensors[order]])
        own = own or _without_row(match, passed[order], measured)
        subjects |= {(order, _leaf(subject)): subject for subject in own}
        found += _judged(case, match, own, tuple(one for one, _ in passed[order]), measured)
    parents = {match.ref.order: match.parent for match in matches}
    by_row = {(x.row.path, x.row.call, x.row.leaf): x for x in found}
    faults = []
    for fault in reversed(find_faults(found, parents)):
        if fault.path not in faulty:
            one = by_row[fault.path, fault.call, fault.leaf]
            subject = subjects[one.row.order, one.row.leaf]
            faults.append(_explained(fault, one, subject, passed[one.row.order], measured))
    return [one.row for one in found], tuple(faults)


def _passed_back(measured: Measured) -> dict[int, list[tuple[ChildInput, Subject]]]:
    """Gradients out of their limit that calls pass back, by their `order`."""
    found: dict[int, list[tuple[ChildInput, Subject]]] = defaultdict(list)
    for match in measured.runs.recording.matches:
        for subject in measured.subjects.passed_back(match):
            error, (order, path) = subject.own, (match.ref.order, match.ref.path)
            if error.fails(subject.limit) or error.unsteady or error.problem:
                child = ChildInput(match.parent, order, path, _leaf(subject), "", error)
                found[match.parent].append((child, subject))
    return found


def _named(subjects: Sequence[Subject]) -> list[Subject]:
    """The gradients of one call; a parameter may have the name of an input."""
    names = [subject.name for subject in subjects]
    return [
        replace(one, name=f"self.{one.name}") if one.name in names[:at] else one
        for at, one in enumerate(subjects)
    ]


def _without_row(match: Match, passed: PassedBack, measured: Measured) -> list[Subject]:
    """A line for a call of which no input has a gradient, if there is something to say of it."""
    if passed:
        return [replace(passed[0][1], match=match, name="")]
    why = measured.runs.why(match)
    if why and any(map(differentiable, match.ref.outputs)):
        return [Subject(match, "", np.zeros((), np.float32), None, problem=why)]
    return []


def _leaf(subject: Subject) -> str:
    return f"grad({subject.name})"


def _judged(
    case: Case,
    match: Match,
    subjects: Sequence[Subject],
    passed: tuple[ChildInput, ...],
    measured: Measured,
) -> Sequence[Found]:
    kind, limit, runs = match.ref.kind, fail_limit(match.ref.kind), measured.runs
    container = match.ref.order in runs.port.containers
    far = bool(passed) or any(one.own.fails(limit) or _far(one, limit) for one in subjects)
    inside, off = None, 0.0
    if container and far and not runs.why(match):
        inside, off = measured.inside(match)
    wrong = [one.error.rel_l2 for one in passed if one.error.fails(limit)]
    found = []
    for subject in subjects:
        error = subject.own
        own = min([*wrong, *([error.rel_l2] if error.fails(limit) else [])], default=math.inf)
        free, inclusive = _free(subject), _inclusive(subject, container, inside)
        errors = Errors(free, inclusive, error, passed, container, lenient=off <= NEARER * own)
        leaf = Leaf(_leaf(subject), runs.recording.store.put(subject.ref))
        pair = LeafMatch(leaf, leaf)
        judged = judge(kind, pair, errors)
        row = row_of(case, match, pair, errors, math.nan, None, judged)
        row = replace(row, case=case.name + GRADIENTS, limited=False)
        found.append(Found(row, judged, passed))
    return found


def _free(subject: Subject) -> Metrics | None:
    if subject.free is None or subject.own.problem:
        return None
    return compare_arrays(subject.ref if subject.total is None else subject.total, subject.free)


def _inclusive(subject: Subject, container: bool, inside: Error | None) -> Error:
    """The error with all that is inside the call, of which `inside` is the worst that is known."""
    error = subject.own
    if container and subject.whole is not None and not error.problem:
        error = scored(subject.ref, subject.whole, None)
    return error if inside is None else replace(inside, mae=error.mae, rel_l2=error.rel_l2)


def _far(subject: Subject, limit: float) -> bool:
    """True if what is inside the call may be out of its limit."""
    if subject.whole is None or subject.problem:
        return False
    error = distance(subject.ref, subject.whole)[1]
    return not bounded(error, SLACK * limit, subject.ref.dtype)


def _explained(
    fault: Fault, found: Found, subject: Subject, passed: PassedBack, measured: Measured
) -> Fault:
    """The fault, with which gradient goes wrong, between which calls, and why."""
    match, reason = subject.match, found.judged.reason
    inside = [m for m in measured.runs.recording.matches if m.parent == match.ref.order]
    segment, what = "", f"the gradient of `{subject.name}`"
    own = bool(subject.name) and subject.own.fails(fail_limit(match.ref.kind))
    if found.judged.blame == "inclusive":
        what += ", with all that is inside,"
        subject = replace(subject, port=subject.whole, wide=None)
    elif passed and not own:
        first, subject = passed[-1]
        to = measured.runs.float64.goes_to((subject.match.ref.order, "output", subject.name))
        after = next((m for m in inside if [m.ref.order] == list(to)), None)
        path = _short(first.path, match)
        segment = f"after `{path}`"
        if after is not None:  # it goes nowhere else
            segment = f"between `{path}` and the input of `{_short(after.ref.path, match)}`"
        what = f"what it passes back to `{path}`"
    cause, text, hint = cause_of(subject, container=bool(inside))
    error = subject.own
    evidence = f"{what} is off by {error.rel_l2:.1e} ({reason})"
    if text:
        evidence = f"{evidence}: {text}"
    forward = measured.runs.forward(match)
    if not bounded(forward, SLACK * fail_limit(match.ref.kind), subject.ref.dtype):
        evidence += f"; what the call returns is off by {forward:.1e} too: look at that first"
    return replace(fault, segment=segment, evidence=evidence, cause=cause, hint=hint)


def _short(path: str, match: Match) -> str:
    return path.removeprefix(f"{match.ref.path}." if match.ref.path else "")
