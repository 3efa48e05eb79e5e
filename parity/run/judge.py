"""Judging by force: each side runs on the other's values, and doubtful calls are looked into."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flax import nnx

from parity.align.norms import with_norms
from parity.capture import nnx as capture_nnx
from parity.capture.recorder import join
from parity.core.calls import Call, Match
from parity.diagnose.case_record import CaseRecord
from parity.force.common import Sides, within
from parity.judge.rows import rows_of
from parity.measure.exclusive import measure_exclusive
from parity.measure.handed import charged_to_callers
from parity.measure.inclusive import measure_inclusive
from parity.run.explain import resolved
from parity.run.protocols import Context
from parity.run.records import Compared

Calls = tuple[Sequence[Call], Sequence[Call]]
"""All calls of the reference and of the port."""


@dataclass(frozen=True)
class Extent:
    """Matches of one call and of those inside it, which come first, and all calls there."""

    matches: Sequence[Match]
    calls: Calls


def judge_forced(context: Context, compared: Compared, module: nnx.Module) -> Sequence[CaseRecord]:
    """Judged rows of all matched calls, in one record if the called module is in the scope.

    `module` is the port's called one.
    """
    case = context.case
    modules: dict[str, Any] = {
        join(context.port_path, path): child
        for path, child in capture_nnx.submodules(module).items()
    }
    modules |= compared.port.linen
    matches, calls = compared.alignment.matches, compared.calls
    if compared.scope.whole:
        sides = Sides(context.reference.float64(case), modules, case.nnx)
        return [_judge(context, Extent(matches, calls), compared, sides)]
    alone = context.reference.float64(replace(case, torch="__call__"))
    sides = Sides(alone, modules, "__call__")
    return [_judge(context, one, compared, sides) for one in extents(matches, calls)]


def _judge(context: Context, extent: Extent, compared: Compared, sides: Sides) -> CaseRecord:
    """Measure the exclusive and inclusive errors of an extent, and judge them."""
    case, store, progress = context.case, context.store, context.progress
    matches, calls = with_norms(extent.matches, extent.calls[0]), extent.calls
    exact = case.r_limit is None
    exclusives = measure_exclusive(
        matches, calls, sides, store, progress, floor=case.floor, exact=exact
    )
    matches = exclusives.as_forced(matches)
    exclusives, right = charged_to_callers(matches, exclusives, sides, store)
    inclusive = measure_inclusive(matches, exclusives, sides, store, progress)
    inclusive = {**inclusive, **right}
    rungs = context.options.rungs
    found = rows_of(case, matches, calls[1], compared.free, inclusive, exclusives, rungs)
    weights = context.weights
    judged = exclusives, weights, store, found, calls[1], context.options.diagnosis
    record = CaseRecord(matches, calls[0], sides, *judged)
    return resolved(record, context.reference, progress)


def extents(matches: Sequence[Match], calls: Calls) -> tuple[Extent, ...]:
    """An extent for each match that is in no other."""
    parents = {match.ref.order: match.parent for match in matches}

    def top(order: int) -> int:
        while parents[order] != -1:
            order = parents[order]
        return order

    groups: dict[int, list[Match]] = {}
    for match in matches:
        groups.setdefault(top(match.ref.order), []).append(match)
    return tuple(_extent(group, calls) for group in groups.values())


def _extent(matches: Sequence[Match], calls: Calls) -> Extent:
    *inner, top = matches  # a call returns after those inside it
    inside = within(calls[0], top.ref.order), within(calls[1], top.port.order)
    outer = replace(top, ref=replace(top.ref, parent=-1), port=replace(top.port, parent=-1))
    return Extent((*inner, outer), inside)
