"""Judged rows of two recorded runs."""

import math
from collections.abc import Sequence
from dataclasses import replace

from parity.core.calls import Call, Match
from parity.core.pair import Case
from parity.core.store import Store
from parity.host.progress import Progress
from parity.judge.faults import Found
from parity.judge.rows import rows_of
from parity.judge.verdict import grade
from parity.measure.exclusive import Exclusives
from parity.measure.free import Free
from parity.traces.float64 import RecordedFloat64
from parity.traces.propagate import NAN, PropagatedErrors


def judge_apart(
    case: Case,
    matches: Sequence[Match],
    calls: Sequence[Call],
    float64: RecordedFloat64,
    free: Free,
    store: Store,
    progress: Progress,
) -> tuple[Sequence[Found], Exclusives]:
    """Judged rows of the matched calls of one case, and their errors; `calls` are the reference's.

    Values besides arrays that a call was given count too: both sides are of one framework.
    """
    work = PropagatedErrors(matches, float64, store, progress)
    progress.stage("what each call was given", len(matches))
    wanted = {match.ref.order for match in matches}
    unknown = float64.own(matches, calls, store, work.measure, wanted)
    exclusives, inclusive = work.result(unknown), work.inclusive()
    found = rows_of(case, matches, (), free, inclusive, exclusives, ())
    return [_shown(one, work) for one in found], exclusives


def _shown(one: Found, errors: PropagatedErrors) -> Found:
    """The row as reports have it: an error that is not known exactly is none of the call itself."""
    row = one.row
    if row.exclusive is not None and errors.before(row.order) > 0:
        row = replace(row, exclusive=replace(row.exclusive, mae=NAN, rel_l2=NAN))
    if row.inclusive is not None and math.isnan(row.inclusive.mae):
        row = replace(row, grade="" if row.metrics is None else grade(row.metrics.mae))
    return replace(one, row=row)
