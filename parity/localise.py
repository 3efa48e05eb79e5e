"""Where the port goes wrong: the deepest calls that fail although they got the right inputs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from parity.records import Fault, Row


def find_faults(
    rows: Sequence[Row], own: Sequence[bool], parents: Mapping[int, int]
) -> tuple[Fault, ...]:
    """One fault per module, in the order in which its first failing call completes.

    `rows` are those of one case, `own[i]` says whether row i fails by its inclusive error,
    `parents` maps the order of each matched call to that of the one around it. A call is at fault
    if it fails and none of the calls inside it does.
    """
    by_call: dict[int, list[Row]] = defaultdict(list)
    for row, failed in zip(rows, own, strict=True):
        if failed:
            by_call[row.order].append(row)
    excused: set[int] = set()
    for order in by_call:
        above = parents[order]
        while above != -1 and above not in excused:
            excused.add(above)
            above = parents.get(above, -1)
    guilty: dict[str, list[Row]] = {}
    for order in sorted(set(by_call) - excused):
        worst = max(by_call[order], key=_badness)
        guilty.setdefault(worst.path, []).append(worst)
    return tuple(_fault(found) for found in guilty.values())


def _badness(row: Row) -> float:
    error = row.inclusive.rel_l2 if row.inclusive is not None else float("inf")
    return error if error == error else float("inf")


def _fault(rows: Sequence[Row]) -> Fault:
    first = rows[0]
    return Fault(
        path=first.path,
        call=first.call,
        leaf=first.leaf,
        case=first.case,
        kind=first.kind,
        evidence=_evidence(first),
        calls=len(rows),
    )


def _evidence(row: Row) -> str:
    error = row.inclusive
    if error is None or error.problem or error.mae != error.mae:
        return row.reason
    figures = f"given the reference's inputs, MAE {error.mae:.1e}, relative {error.rel_l2:.1e}"
    if error.r == error.r:
        figures += f", R {error.r:.3g}"
    return f"{figures} ({row.reason}); the calls inside it hold"
