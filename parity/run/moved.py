"""Code that the port has on the other side of a module's boundary, as an activation behind a norm.

The module then returns something else, and the one around it makes up for that: neither is wrong.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from parity.align.calls import Alignment
from parity.align.readings import NEAR
from parity.core.calls import without
from parity.core.limits import fail_limit
from parity.judge.faults import Found

MOVED = "code moved between it and the call around it, which returns the same all the same"


def moved(found: Sequence[Found]) -> frozenset[str]:
    """Modules whose local error the call around them makes up for.

    It does so in front of a module if that returns what it should in the port's own run, behind it
    if the deviation is anywhere but in what the module gets.
    """
    lost = {one.row.order for one in found if not _holds(one)}
    around: dict[int, set[int]] = defaultdict(set)
    for one in found:
        if one.row.order not in lost:
            around[one.row.order] |= _deviations(one)
    wrong = [one for one in found if one.judged.blame == "exclusive"]
    return frozenset(
        one.row.path
        for one in wrong
        if around[one.row.parent] - (set() if _returns_same(one) else {one.row.order})
    )


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


def _deviations(one: Found) -> set[int]:
    """The calls that get something wrong from this one, and itself if what it returns is wrong."""
    limit, own = fail_limit(one.row.kind), one.row.exclusive
    found = {given.child for given in one.child_inputs if given.error.fails(limit)}
    return found | {one.row.order} if own is not None and own.fails(limit) else found


def _returns_same(one: Found) -> bool:
    free = one.row.metrics
    return free is not None and free.rel_l2 <= NEAR


def _holds(one: Found) -> bool:
    """True if what a call returns is right, with all that is inside it."""
    whole = one.row.inclusive
    if whole is None or whole.problem or not whole.steady:
        return False
    return whole.mae >= 0 and not whole.fails(fail_limit(one.row.kind))
