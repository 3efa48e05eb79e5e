"""Code that the port has in the call around a module, where both are wrong by themselves.

The port may have code on the other side of a module's boundary, as an activation behind a norm: the
module then returns something else, and the one around it makes up for that, unless it is wrong too.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from parity.align.calls import Alignment
from parity.align.readings import NEAR
from parity.core.calls import without
from parity.core.limits import fail_limit
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.findings import Kept
from parity.diagnose.without_replay import suspected
from parity.judge.faults import Found

MOVED = "code moved between it and the call around it, which returns the same all the same"

Keep = Callable[[int, CaseRecord], Kept | None]
"""Runs a call on each side and finds where in the source they part, by its `order`."""


def moved(records: Sequence[CaseRecord], keep: Keep) -> frozenset[str]:
    """Modules whose code moved to the call around them, in part or as a whole."""
    paths: set[str] = set()
    for record in records:
        around = _deviations(record.found)
        paths |= _made_up_for(record.found, around)
        for order, inside in _both_wrong(record.found, around).items():
            if _part_on_one_side(order, inside, record, keep):
                paths |= inside
    return frozenset(paths)


def inlined(alignment: Alignment, paths: Collection[str]) -> Alignment:
    """The alignment with the calls of these modules inlined."""
    orders = {match.ref.order for match in alignment.matches if match.ref.path in paths}
    matches, coverage = without(alignment.matches, orders), alignment.coverage
    coverage = replace(
        coverage,
        matched=tuple(path for path in coverage.matched if path not in paths),
        inlined={**coverage.inlined, **dict.fromkeys(paths, MOVED)},
        matched_calls=len(matches),
    )
    return replace(alignment, matches=matches, coverage=coverage)


def _deviations(found: Sequence[Found]) -> Mapping[int, set[int]]:
    """By call, those that get something wrong from it, and itself if what it returns is wrong."""
    around: dict[int, set[int]] = defaultdict(set)
    for one in found:
        limit, own = fail_limit(one.row.kind), one.row.exclusive
        around[one.row.order] |= {x.child for x in one.child_inputs if x.error.fails(limit)}
        if own is not None and own.fails(limit):
            around[one.row.order].add(one.row.order)
    return around


def _made_up_for(found: Sequence[Found], around: Mapping[int, set[int]]) -> set[str]:
    """Modules whose local error the call around them makes up for, which returns what is right.

    It does so in front of a module if that returns what it should in the port's own run, behind it
    if the deviation is anywhere but in what the module gets.
    """
    lost = {one.row.order for one in found if not _holds(one)}
    return {
        one.row.path
        for one in found
        if one.judged.blame == "exclusive"
        and one.row.parent not in lost
        and around.get(one.row.parent, set()) - (set() if _returns_same(one) else {one.row.order})
    }


def _both_wrong(
    found: Sequence[Found], around: Mapping[int, set[int]]
) -> Mapping[int, frozenset[str]]:
    """Calls at fault that pass on something wrong, and the modules at fault right inside them."""
    wrong = {one.row.order for one in found if one.judged.blame == "exclusive"}
    inside: dict[int, set[str]] = defaultdict(set)
    for one in found:
        parent = one.row.parent
        if one.row.order in wrong and parent in wrong and around.get(parent) and not one.segment:
            inside[parent].add(one.row.path)
    return {order: frozenset(paths) for order, paths in inside.items()}


def _part_on_one_side(order: int, paths: frozenset[str], record: CaseRecord, keep: Keep) -> bool:
    """True if the programs part only in the code of modules inside a call, or only in its own, seen
    with these modules laid open: then what both get wrong is one thing.
    """
    own = [match for match in record.matches if match.ref.path in paths]
    if any(suspected(match, record) for match in own):
        return False  # they have other weights
    matches = without(record.matches, {match.ref.order for match in own})
    try:
        with record.limit:
            kept = None if record.limit.over else keep(order, replace(record, matches=matches))
        return kept is not None and kept.on_one_side(own)
    except Exception:  # such as code that does not run in float64: both are named then
        return False


def _returns_same(one: Found) -> bool:
    free = one.row.metrics
    return free is not None and free.rel_l2 <= NEAR


def _holds(one: Found) -> bool:
    """True if what a call returns is right, with all that is inside it."""
    whole = one.row.inclusive
    if whole is None or whole.problem or not whole.steady:
        return False
    return whole.mae >= 0 and not whole.fails(fail_limit(one.row.kind))
