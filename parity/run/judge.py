"""Judging by force: each side runs on the other's values, and doubtful calls are looked into."""

from dataclasses import replace
from typing import Any

from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.capture.recorder import join
from parity.diagnose.case_record import CaseRecord
from parity.force.common import Sides
from parity.judge.rows import rows_of
from parity.judge.verdict import fail_limit
from parity.measure.exclusive import measure_exclusive
from parity.measure.inclusive import measure_inclusive
from parity.run.explain import resolved
from parity.run.part import Extent, Part, extents
from parity.run.protocols import Context
from parity.run.records import Compared, Judged


def judge_forced(context: Context, compared: Compared, module: nnx.Module) -> Judged:
    """Judged rows of all matched calls, in one part if the called module is in the scope.

    `module` is the port's called one.
    """
    case = context.case
    modules: dict[str, Any] = {
        join(context.port_path, path): child
        for path, child in capture_nnx.submodules(module).items()
    }
    modules |= compared.recording.port.linen
    sides = Sides(context.reference.float64(case), modules, case.nnx)
    matches, calls = compared.alignment.matches, compared.recording.calls
    if compared.recording.scope.whole:
        whole = Extent(matches, calls)
        return Judged([_judge(context, whole, compared, sides)], sides)
    alone = context.reference.float64(replace(case, torch="__call__"))
    sides = replace(sides, reference=alone, nnx_method="__call__")
    parts = [_judge(context, one, compared, sides) for one in extents(matches, calls)]
    return Judged(parts, sides)


def _judge(context: Context, extent: Extent, compared: Compared, sides: Sides) -> Part:
    """Measure the exclusive and inclusive errors of an extent, and judge them."""
    case, store, progress = context.case, context.store, context.progress
    matches, calls = extent.matches, extent.calls
    limit = None if case.floor else fail_limit
    exclusives = measure_exclusive(matches, calls, sides, store, limit, progress)
    inclusive = measure_inclusive(matches, exclusives, sides, store, fail_limit, progress)
    rungs = context.options.rungs
    found = rows_of(case, matches, calls[1], compared.free, inclusive, exclusives, rungs)
    if not any(one.judged.blame or one.judged.doubtful for one in found):
        return Part(extent, found, exclusives, None)
    scene = CaseRecord(matches, calls[0], sides, exclusives, context.weights, store, calls[1])
    found = resolved(found, scene, context.reference.diagnose, progress)
    return Part(extent, found, exclusives, scene)
