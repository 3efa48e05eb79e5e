"""Rows of the matched calls of a case, each with its verdict."""

from collections.abc import Mapping, Sequence

from parity.align.ignored import WITHOUT, around
from parity.align.taps import tap_segments
from parity.core.calls import Call, LeafMatch, Match, above
from parity.core.limits import fail_limit, r_limit
from parity.core.measurements import Error
from parity.core.pair import Case, Rung
from parity.core.problems import DIFFERENT, not_measured
from parity.core.verdicts import Row
from parity.judge.faults import Found
from parity.judge.verdict import Errors, Judgement, downgraded, grade, judge
from parity.measure.exclusive import Exclusives
from parity.measure.free import Free, Key

RANDOM = (
    "{} of the reference computes something else each time: it draws random numbers, or hangs on"
    " what was before; call .eval(), or give what it draws as an argument"
)


ABOVE = 100.0
"""How many times as far as what the reference draws moves it a mistake of the port is."""


def rows_of(
    case: Case,
    matches: Sequence[Match],
    calls: Sequence[Call],
    free: Free,
    inclusive: Mapping[Key, Error],
    exclusives: Exclusives,
    rungs: Sequence[Rung],
) -> list[Found]:
    """A judged row for each output leaf that can be, by what was measured of it; `calls` are all of
    the port's.
    """
    found: list[Found] = []
    own, passed = exclusives.errors, exclusives.child_inputs
    by_kind = {kind: rung for rung in rungs for kind in rung.kinds}
    containers = {match.parent for match in matches}
    segments = tap_segments(matches, calls)
    without = around(matches)
    parents = {match.ref.order: match.parent for match in matches}
    drawn = {m.ref.order for m in matches if m.ref.random}
    inside_drawn = {outer for order in drawn for outer in above(parents[order], parents)}
    for match in matches:
        order, kind = match.ref.order, match.ref.kind
        rung = by_kind.get(kind)
        limit = fail_limit(match.family) if case.r_limit is None else case.r_limit
        warn = r_limit(match.family).warn if case.r_limit is None else limit
        given = passed.get(order, ())
        off = tuple(one for one in given if _matters(one.error, limit))
        child_inputs = off or tuple(one for one in given if one.error.r > warn)
        for leaf in match.outputs:
            if leaf.declared:  # the reason is in the coverage
                continue
            key = (order, leaf.ref.name)
            errors = Errors(
                free.errors.get(key),
                inclusive.get(key),
                own.get(key),
                child_inputs,
                container=order in containers and order not in inside_drawn,
            )
            if errors.free is None and leaf.problem is None:
                continue  # equal values that are no arrays
            judged = judge(match.family, leaf, errors, rung=rung, r_limit=case.r_limit)
            if order in drawn:
                judged = _unless_equal(judged, match, errors)
            if match.ref.tapped and match.port.tapped:
                returned = [error for (one, _), error in inclusive.items() if one == match.parent]
                judged = downgraded(judged, returned, limit)
            judged = _with_note(judged, without.get(order))
            row = row_of(case, match, leaf, errors, free.gain(key), rung, judged)
            shown = off if judged.verdict == "FAIL" else child_inputs  # doubt places no mistake
            found.append(Found(row, judged, shown, segments.get(order, "")))
    return found


def _unless_equal(judged: Judgement, match: Match, errors: Errors) -> Judgement:
    """The judgement of a call of the reference that is random: only what is equal is right, and
    wrong what is of another form, or off where the reference is as in a run that drew otherwise.
    """
    form = judged.problem is not None and judged.problem.kind in DIFFERENT
    own = errors.exclusive
    drawn = own is None or not own.floor_rel_l2 < own.rel_l2 / ABOVE
    if form or (errors.free is not None and errors.free.mae == 0):
        return judged
    if judged.blame == "exclusive" and not drawn:
        return judged
    return Judgement("UNKNOWN", not_measured(RANDOM.format(match.ref.random)))


def _with_note(judged: Judgement, left_out: str | None) -> Judgement:
    """A PASS is a WARN if something inside the call was left out by `ignore=`."""
    if judged.verdict != "PASS" or left_out is None:
        return judged
    return Judgement("WARN", not_measured(WITHOUT.format(f"`{left_out}`")))


def _matters(error: Error, limit: float) -> bool:
    return error.fails(limit) or error.unsteady or error.problem is not None


def row_of(
    case: Case,
    match: Match,
    leaf: LeafMatch,
    errors: Errors,
    gain: float,
    rung: Rung | None,
    judged: Judgement,
) -> Row:
    """The row of one output of a call."""
    buffer = leaf.ref.buffer
    figures = errors.inclusive or errors.exclusive or errors.free
    off = [child.error for child in errors.child_inputs if child.error.mae >= 0]
    return Row(
        rung=rung.name if rung else "",
        case=case.name,
        path=match.ref.path,
        nnx_path=match.port.path,
        kind=match.ref.kind,
        call=match.ref.number,
        leaf=leaf.ref.name,
        shape=buffer.shape if buffer else (),
        dtype=buffer.dtype.name if buffer else type(leaf.ref.value).__name__,
        metrics=errors.free,
        inclusive=errors.inclusive,
        exclusive=errors.exclusive,
        gain=gain,
        grade=grade(figures.mae) if figures is not None else "",
        verdict=judged.verdict,
        reason=judged.reason,
        order=match.ref.order,
        parent=match.parent,
        limited=case.r_limit is None,
        one_sided=leaf.only_on,
        child_inputs=max((error.rel_l2 for error in off), default=0.0),
        child_r=max((error.r for error in off if error.r >= 0), default=0.0),
    )
