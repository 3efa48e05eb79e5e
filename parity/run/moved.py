"""Code that the port has on the other side of a module's boundary, as an activation behind a norm.

The module then returns something else, and the one around it makes up for that: neither is wrong.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from parity.align.calls import Alignment
from parity.core.calls import above
from parity.judge.faults import Found
from parity.judge.verdict import fail_limit

MOVED = "code moved between it and the call around it, which returns the same all the same"


def moved(found: Sequence[Found]) -> frozenset[str]:
    """Modules whose local error the call around them makes up for."""
    lost = {one.row.order for one in found if not _holds(one)}
    around = {one.row.order for one in found if _locally_wrong(one)} - lost
    return frozenset(
        one.row.path
        for one in found
        if one.judged.blame == "exclusive" and one.row.parent in around
    )


def without(alignment: Alignment, paths: Collection[str]) -> Alignment:
    """The alignment with the calls of these modules inlined."""
    parents = {match.ref.order: match.parent for match in alignment.matches}
    kept = [match for match in alignment.matches if match.ref.path not in paths]
    orders = {match.ref.order for match in kept}
    matches = tuple(
        replace(match, parent=next(filter(orders.__contains__, above(match.parent, parents)), -1))
        for match in kept
    )
    coverage = alignment.coverage
    coverage = replace(
        coverage,
        matched=tuple(path for path in coverage.matched if path not in paths),
        inlined={**coverage.inlined, **dict.fromkeys(paths, MOVED)},
        matched_calls=len(matches),
    )
    return replace(alignment, matches=matches, coverage=coverage)


def _locally_wrong(one: Found) -> bool:
    limit, own = fail_limit(one.row.kind), one.row.exclusive
    given = any(given.error.fails(limit) for given in one.child_inputs)
    return given or (own is not None and own.fails(limit))


def _holds(one: Found) -> bool:
    """True if what a call returns is right, with all that is inside it."""
    whole = one.row.inclusive
    if whole is None or whole.problem or not whole.steady:
        return False
    return whole.mae >= 0 and not whole.fails(fail_limit(one.row.kind))
