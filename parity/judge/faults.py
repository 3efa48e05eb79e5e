"""Faults: every call whose local computation is wrong, and between which calls inside it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.core.calls import above
from parity.core.measurements import ChildInput
from parity.core.problems import ProblemKind
from parity.core.verdicts import Fault, Row
from parity.judge.verdict import Judgement


@dataclass(frozen=True)
class Found:
    """A row, the verdict on it, and the child inputs of its call that are off.

    `segment` is set for a tap: between which two points its code lies.
    """

    row: Row
    judged: Judgement
    child_inputs: tuple[ChildInput, ...] = ()
    segment: str = ""


def find_faults(found: Sequence[Found], parents: Mapping[int, int]) -> tuple[Fault, ...]:
    """One fault per module, in the order of execution.

    `found` are the rows of one case, `parents` maps the order of each matched call to that of the
    one around it. A call is at fault if its exclusive error fails; where only its inclusive error
    does, if no call inside it fails at all. Another shape or type is that of the call inside that
    has it too.
    """
    by_call: dict[int, list[Found]] = defaultdict(list)
    for one in found:
        if one.judged.blame:
            by_call[one.row.order].append(one)
    around = {outer for order in by_call for outer in above(parents[order], parents)}
    forms = {
        (outer, _form(one))
        for order, candidates in by_call.items()
        for one in candidates
        for outer in above(parents[order], parents)
    }
    guilty: list[tuple[float, Found]] = []
    for order, candidates in by_call.items():
        own = [one for one in candidates if one.judged.blame == "exclusive"]
        own = [one for one in own if not _form(one) or (order, _form(one)) not in forms]
        if own or order not in around:
            guilty.append(
                (_begins(order, candidates, parents), max(own or candidates, key=_badness))
            )
    by_module: dict[str, list[Found]] = defaultdict(list)
    for _, one in sorted(guilty, key=lambda pair: pair[0]):
        by_module[one.row.path].append(one)
    return tuple(_fault(calls, found, parents) for calls in by_module.values())


def _form(one: Found) -> ProblemKind | None:
    """The kind of a problem that what is around a call has too: another shape, or type."""
    kind = one.judged.problem and one.judged.problem.kind
    return kind if kind in (ProblemKind.SHAPE, ProblemKind.DTYPE) else None


def _begins(order: int, candidates: Sequence[Found], parents: Mapping[int, int]) -> float:
    """When the deviation shows: before the first call that receives it, else at the return."""
    children = [given.child for one in candidates for given in one.child_inputs]
    return min((_first(child, parents) - 0.5 for child in children), default=float(order))


def _first(order: int, parents: Mapping[int, int]) -> int:
    """The first call to return inside a call, or the call itself."""
    while True:
        inner = [child for child, parent in parents.items() if parent == order]
        if not inner:
            return order
        order = min(inner)


def _badness(one: Found) -> float:
    errors = [one.row.exclusive, one.row.inclusive]
    sizes = [error.rel_l2 for error in errors if error is not None]
    return max((size if size == size else float("inf") for size in sizes), default=float("inf"))


def _fault(calls: Sequence[Found], found: Sequence[Found], parents: Mapping[int, int]) -> Fault:
    first = calls[0]
    row = first.row
    return Fault(
        path=row.path,
        call=row.call,
        leaf=row.leaf,
        case=row.case,
        kind=row.kind,
        magnitude=_magnitude(first),
        segment=segment_of(first, found, parents),
        calls=len(calls),
    )


def segment_of(one: Found, found: Sequence[Found], parents: Mapping[int, int]) -> str:
    """Text that says between which calls inside it a call goes wrong."""
    if one.judged.blame != "exclusive":
        return ""
    if one.segment:
        return one.segment
    rows = (other.row for other in found if parents[other.row.order] == one.row.order)
    inside = {row.order: row.path for row in rows}
    prefix = f"{one.row.path}." if one.row.path else ""
    if one.child_inputs:
        first = min(one.child_inputs, key=lambda given: given.child)
        after = f"`{first.after.removeprefix(prefix)}`" if first.after else "its own input"
        return f"between {after} and the input of `{first.path.removeprefix(prefix)}`"
    if not inside:
        return ""
    return f"after `{inside[max(inside)].removeprefix(prefix)}`"


def _magnitude(one: Found) -> str:
    row, reason = one.row, one.judged.reason
    if one.judged.blame == "inclusive":
        error = row.inclusive
        if error is None or error.mae != error.mae:
            return reason
        return (
            f"given the reference's inputs, MAE {error.mae:.1e}, relative {error.rel_l2:.1e} "
            f"({reason}); no call inside it is at fault"
        )
    if one.child_inputs:
        problem = one.child_inputs[0].error.problem
        if problem is not None and problem.kind is ProblemKind.VALUE:
            return f"a child input has {reason}"
        return f"a child input is off by {one.child_inputs[0].error.rel_l2:.1e} ({reason})"
    own = row.exclusive
    if own is None or own.mae != own.mae:
        return reason
    what = "the code before it" if one.segment else "its local computation"
    return f"{what} is off by MAE {own.mae:.1e}, relative {own.rel_l2:.1e} ({reason})"
