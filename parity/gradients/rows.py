"""From gradients to rows, verdicts and faults."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from parity.core.calls import Leaf, LeafMatch, Match
from parity.core.limits import fail_limit
from parity.core.measurements import ChildInput, Error
from parity.core.metrics import compare_arrays
from parity.core.pair import Case
from parity.core.verdicts import GRADIENTS, Fault, Row
from parity.gradients.cause import cause_of
from parity.gradients.noise import Subject
from parity.gradients.records import differentiable
from parity.gradients.subjects import Subjects
from parity.judge.faults import Found, find_faults
from parity.judge.rows import row_of
from parity.judge.verdict import Errors, judge

PassedBack = Sequence[tuple[ChildInput, Subject]]
"""Gradients that a call passes back to calls inside it and that are out of their limit."""

NEARER = 0.1
"""A call's local error is downgraded if all gradients of the call, with what is inside it, are
nearer by this factor, or right."""

SLACK = 100.0
"""How far above its limit R of these may be: the roundings of all that is inside are in them."""


def judge_gradients(
    case: Case, subjects: Subjects, faulty: Collection[str]
) -> tuple[Sequence[Row], tuple[Fault, ...]]:
    """The rows of all calls, and one fault per module, in the order of a backward pass.

    `faulty` are modules whose forward code is at fault: it is named, and they are not twice.
    """
    tensors: dict[int, list[Subject]] = defaultdict(list)
    for subject in subjects.tensors():
        tensors[subject.match.ref.order].append(subject)
    passed = _passed_back(subjects)
    found: list[Found] = []
    known: dict[tuple[int, str], Subject] = {}
    for match in subjects.matches:
        order = match.ref.order
        own = _named([*subjects.inputs(match), *tensors[order]])
        own = own or _without_row(match, passed[order], subjects)
        known |= {(order, _leaf(subject)): subject for subject in own}
        found += _judged(case, match, own, tuple(one for one, _ in passed[order]), subjects)
    parents = {match.ref.order: match.parent for match in subjects.matches}
    by_row = {(x.row.path, x.row.call, x.row.leaf): x for x in found}
    faults = []
    for fault in reversed(find_faults(found, parents)):
        if fault.path not in faulty:
            one = by_row[fault.path, fault.call, fault.leaf]
            subject = known[one.row.order, one.row.leaf]
            fault = _explained(fault, one, subject, passed[one.row.order], subjects)
            faults.append(_after_forward(fault, faulty))
    return [one.row for one in found], tuple(faults)


def _passed_back(subjects: Subjects) -> dict[int, list[tuple[ChildInput, Subject]]]:
    """Gradients out of their limit that calls pass back, by their `order`."""
    found: dict[int, list[tuple[ChildInput, Subject]]] = defaultdict(list)
    for match in subjects.matches:
        for subject in subjects.passed_back(match):
            error, (order, path) = subject.own, (match.ref.order, match.ref.path)
            if error.fails(fail_limit(subject.kind)) or error.unsteady or error.problem:
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


def _without_row(match: Match, passed: PassedBack, subjects: Subjects) -> list[Subject]:
    """A line for a call of which no input has a gradient, if there is something to say of it."""
    if passed:
        return [replace(passed[0][1], match=match, name="")]
    why = subjects.why(match)
    if why and any(map(differentiable, match.ref.outputs)):
        none = np.zeros((), np.float32)
        return [Subject(match, "", match.ref.kind, none, None, problem=why)]
    return []


def _leaf(subject: Subject) -> str:
    return f"grad({subject.name})"


def _judged(
    case: Case,
    match: Match,
    own: Sequence[Subject],
    passed: tuple[ChildInput, ...],
    subjects: Subjects,
) -> Sequence[Found]:
    limit, order = fail_limit(match.ref.kind), match.ref.order
    errors = [*(one.own for one in own), *(one.error for one in passed)]
    wrong = [min(error.rel_l2, 1.0) for error in errors if error.fails(limit)]
    container = any(one.parent == order for one in subjects.matches)
    holds = container and bool(wrong) and _holds(match, min(wrong), subjects)
    found = []
    for subject in own:
        measured = None if subject.own.problem else subject.free
        free = compare_arrays(*measured) if measured else None
        inclusive = Error(math.nan, math.nan, 0) if holds else None
        figures = Errors(free, inclusive, subject.own, passed, container=holds)
        leaf = Leaf(_leaf(subject), subjects.recording.store.put(subject.ref))
        pair = LeafMatch(leaf, leaf)
        judged = judge(match.ref.kind, pair, figures)
        row = row_of(case, match, pair, figures, math.nan, None, judged)
        row = replace(row, case=case.name + GRADIENTS, limited=False)
        found.append(Found(row, judged, passed))
    return found


def _holds(match: Match, off: float, subjects: Subjects) -> bool:
    """True if the gradients of a call with its subtree are right, though its local ones are `off`:
    a line that stands in another module than in the reference is no mistake.
    """
    limit = fail_limit(match.ref.kind)
    for subject, whole in subjects.subtree(match):
        if whole is None or subject.problem:
            return False
        error = subject.scored(whole)
        near = error.r <= SLACK * limit and error.rel_l2 <= NEARER * off
        if error.problem or not (near or error.r <= limit):
            return False
    return True


def _explained(
    fault: Fault, found: Found, subject: Subject, passed: PassedBack, subjects: Subjects
) -> Fault:
    """The fault, with which gradient goes wrong, between which calls, and why."""
    match, segment, what = subject.match, "", f"the gradient of `{subject.name}`"
    inside = [one for one in subjects.matches if one.parent == match.ref.order]
    own = bool(subject.name) and subject.own.fails(fail_limit(match.ref.kind))
    if passed and not own:
        first, subject = passed[-1]
        path = first.path.removeprefix(f"{match.ref.path}." if match.ref.path else "")
        segment, what = f"after `{path}`", f"what it passes back to `{path}`"
    cause, text, hint = cause_of(subject, container=bool(inside))
    size = f"{what} is off by {subject.own.rel_l2:.1e} ({found.judged.reason})"
    return replace(fault, segment=segment, magnitude=size, evidence=text, cause=cause, hint=hint)


def _after_forward(fault: Fault, faulty: Collection[str]) -> Fault:
    """The fault; code that computes something else has another gradient."""
    below = f"{fault.path}." if fault.path else ""
    path = next((path for path in faulty if path.startswith(below)), None)
    if path is None:
        return fault
    text = f"`{path}` is at fault in the forward pass: look at that first"
    return replace(fault, evidence="; ".join(filter(None, (fault.evidence, text))))
