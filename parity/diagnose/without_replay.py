"""Causes that show without a replay of the reference: form, weights, repetition."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from parity.capture.restore_nnx import kept_port
from parity.core.arrays import Array, comparable
from parity.core.calls import Match
from parity.core.metrics import unit_roundoff
from parity.core.problems import ProblemKind
from parity.core.tensors import Weight
from parity.core.tree import flatten
from parity.diagnose.case_record import CaseRecord
from parity.force.common import values
from parity.force.nnx import repeat
from parity.judge.faults import Found

Shown = tuple[str, str]
"""The cause and the evidence for it."""

FORM = {
    ProblemKind.NONFINITE: "nonfinite",
    ProblemKind.SHAPE: "shape",
    ProblemKind.DTYPE: "dtype",
    ProblemKind.FEWER_BITS: "dtype",
}
"""Kinds of problems that are causes."""


def by_kind(found: Found, match: Match) -> Iterator[Shown]:
    """A row that fails by its form, finiteness, shape or type, or by what a call is handed."""
    problem = found.judged.problem
    if problem is not None and problem.kind in FORM:
        yield FORM[problem.kind], problem.text
    if problem is not None and problem.kind is ProblemKind.VALUE and found.child_inputs:
        yield "glue", f"it hands on {problem.text}"
    for leaf in match.outputs:
        ref, port = comparable(leaf) or (None, None)
        if ref and port and unit_roundoff(port.dtype) > unit_roundoff(ref.dtype) > 0:
            yield "dtype", f"the port returns {port.dtype.name}, the reference {ref.dtype.name}"


def suspected(match: Match, record: CaseRecord) -> Sequence[Weight]:
    """Tensors that this call reads and that are not the reference's."""
    within = inside(match, record)
    read = [
        line
        for line in record.weights
        if line.path == match.ref.path or (line.nnx_name and line.path in within)
    ]
    # an unusual order of axes alone proves nothing: the port may read its weights so
    wrong = [line for line in read if line.cause and not line.transform]
    return wrong or [line for line in read if line.cause and (line.whole or not line.in_turns)]


def inside(match: Match, record: CaseRecord) -> Collection[str]:
    """Modules that ran inside a call and were not compared: what they do counts with it."""
    compared = {one.ref.path for one in record.matches}
    found: dict[str, None] = {}
    for path in dict.fromkeys(call.path for call in record.calls if call.path not in compared):
        above = path
        while above and above not in compared:
            above = above.rpartition(".")[0]
        if above == match.ref.path:
            found[path] = None
    return found


def by_repetition(match: Match, record: CaseRecord) -> Iterator[Shown]:
    """A call that returns something else the second time."""
    if match.port.arguments is None:
        return
    method = record.sides.nnx_method if match.ref.parent == -1 else "__call__"
    module, given = record.sides.module(match), values(match, record.store)
    # a counter or a cache starts alike in both: what differs is random
    with kept_port(module):
        outputs = [repeat(module, method, match.port, given, streams=False) for _ in range(2)]
    runs = [[np.asarray(x) for _, x in flatten(output).arrays] for output in outputs]
    differ = [float(np.mean(a != b)) for a, b in zip(*runs, strict=True) if not _same(a, b)]
    if differ:
        yield (
            "dropout",
            f"two runs on the same inputs differ in {100 * max(differ):.3g} % of the entries",
        )


def _same(a: Array, b: Array) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
