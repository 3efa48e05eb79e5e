"""What is measured, judged and explained of one call and of all calls inside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.align.ignored import WITHOUT, around
from parity.align.taps import tap_segments
from parity.core.calls import Call, LeafMatch, Match
from parity.core.measurements import Error
from parity.core.pair import Case, Rung
from parity.core.problems import not_measured
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.core.verdicts import Fault, Row
from parity.diagnose.scene import Scene
from parity.force.common import Sides, within
from parity.host.progress import Progress
from parity.judge.faults import Found, find_faults
from parity.judge.verdict import Errors, Judgement, downgraded, fail_limit, grade, judge
from parity.measure.exclusive import Exclusives, measure_exclusive
from parity.measure.free import Free, Key
from parity.measure.inclusive import measure_inclusive
from parity.run.explain import Diagnose, explained, settled


@dataclass(frozen=True)
class Part:
    """The matches of one call and of those inside it, which come first, and all calls there."""

    matches: Sequence[Match]
    calls: tuple[Sequence[Call], Sequence[Call]]


@dataclass(frozen=True)
class Judged:
    """The rows of a part, and what its faults are explained from, if there may be any."""

    part: Part
    found: Sequence[Found]
    exclusives: Exclusives | None
    scene: Scene | None


def split(
    matches: Sequence[Match], calls: tuple[Sequence[Call], Sequence[Call]]
) -> tuple[Part, ...]:
    """A part for each match that is in no other."""
    parents = {match.ref.order: match.parent for match in matches}

    def top(order: int) -> int:
        while parents[order] != -1:
            order = parents[order]
        return order

    groups: dict[int, list[Match]] = {}
    for match in matches:
        groups.setdefault(top(match.ref.order), []).append(match)
    return tuple(_part(group, calls) for group in groups.values())


def _part(matches: Sequence[Match], calls: tuple[Sequence[Call], Sequence[Call]]) -> Part:
    *inner, top = matches  # a call returns after those inside it
    theirs, ours = within(calls[0], top.ref.order), within(calls[1], top.port.order)
    outer = replace(top, ref=replace(top.ref, parent=-1), port=replace(top.port, parent=-1))
    return Part((*inner, outer), (theirs, ours))


def judge_part(
    case: Case,
    part: Part,
    sides: Sides,
    free: Free,
    weights: Sequence[Weight],
    store: Store,
    diagnose: Diagnose,
    progress: Progress,
    *,
    modes: Sequence[str],
    rungs: Sequence[Rung],
) -> Judged:
    """Measure its exclusive and inclusive errors, as far as `modes` ask for them, and judge."""
    exclusives: Exclusives | None = None
    inclusive: Mapping[Key, Error] = {}
    if "exclusive" in modes:
        limit = None if case.floor else fail_limit
        exclusives = measure_exclusive(part.matches, part.calls, sides, store, limit, progress)
        if "inclusive" in modes:
            inclusive = measure_inclusive(
                part.matches, exclusives, sides, store, fail_limit, progress
            )
    found = rows_of(case, part.matches, part.calls[1], free, inclusive, exclusives, rungs)
    scene = None
    if exclusives is not None and any(x.judged.blame or x.judged.doubtful for x in found):
        scene = Scene(part.matches, part.calls[0], sides, exclusives, weights, store)
        found = settled(found, scene, diagnose, progress)
    return Judged(part, found, exclusives, scene)


def faults_of(parts: Sequence[Judged], diagnose: Diagnose, progress: Progress) -> tuple[Fault, ...]:
    """The faults of all parts of a case, one for each module, explained where they can be."""
    found = [one for part in parts for one in part.found]
    parents = {m.ref.order: m.parent for part in parts for m in part.part.matches}
    faults = find_faults(found, parents)
    if faults and any(part.scene for part in parts):
        progress.stage("diagnosis", len(faults))
        return tuple(_explained(fault, parts, diagnose, progress) for fault in faults)
    return faults


def _explained(
    fault: Fault, parts: Sequence[Judged], diagnose: Diagnose, progress: Progress
) -> Fault:
    own = part_of(fault, parts)
    if own.scene is None:
        return fault
    return explained(fault, own.found, own.scene, diagnose, progress)


def part_of(fault: Fault, parts: Sequence[Judged]) -> Judged:
    """The part that the faulty call is in."""
    return next(
        part for part in parts
        if any((x.row.path, x.row.call) == (fault.path, fault.call) for x in part.found)
    )  # fmt: skip


def rows_of(
    case: Case,
    matches: Sequence[Match],
    calls: Sequence[Call],
    free: Free,
    inclusive: Mapping[Key, Error],
    exclusives: Exclusives | None,
    rungs: Sequence[Rung],
) -> list[Found]:
    """A judged row for each output leaf that can be, by what was measured of it."""
    found: list[Found] = []
    by_kind = {kind: rung for rung in rungs for kind in rung.kinds}
    containers = {match.parent for match in matches}
    segments = tap_segments(matches, calls)
    without = around(matches)
    for match in matches:
        order, kind = match.ref.order, match.ref.kind
        rung = by_kind.get(kind)
        limit = fail_limit(kind) if case.r_limit is None else case.r_limit
        handed = exclusives.handed.get(order, ()) if exclusives else ()
        handed = tuple(one for one in handed if _matters(one.error, limit))
        for leaf in match.outputs:
            if leaf.declared:  # the reason is in the coverage
                continue
            key = (order, leaf.ref.name)
            errors = Errors(
                free.errors.get(key),
                inclusive.get(key),
                exclusives.errors.get(key) if exclusives else None,
                handed,
                container=order in containers,
            )
            if errors.free is None and leaf.problem is None:
                continue  # equal values that are no arrays
            judged = judge(kind, leaf, errors, rung=rung, r_limit=case.r_limit)
            if match.ref.tapped and match.port.tapped:
                returned = [error for (one, _), error in inclusive.items() if one == match.parent]
                judged = downgraded(judged, returned, limit)
            if judged.verdict == "PASS" and order in without:
                judged = Judgement("WARN", not_measured(WITHOUT.format(f"`{without[order]}`")))
            row = _row(case, match, leaf, errors, free.gain(key), rung, judged)
            found.append(Found(row, judged, handed, segments.get(order, "")))
    return found


def _matters(error: Error, limit: float) -> bool:
    return error.fails(limit) or error.unsteady or error.problem is not None


def _row(
    case: Case,
    match: Match,
    leaf: LeafMatch,
    errors: Errors,
    gain: float,
    rung: Rung | None,
    judged: Judgement,
) -> Row:
    buffer = leaf.ref.buffer
    figures = errors.inclusive or errors.exclusive or errors.free
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
        handed=max((x.error.rel_l2 for x in errors.handed if x.error.mae >= 0), default=0.0),
    )
