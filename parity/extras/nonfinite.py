"""The first call of each side that leaves the finite numbers, and from what values."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from parity.core.arrays import Array
from parity.core.calls import Call, Leaf, Match
from parity.core.measurements import NonFinite
from parity.core.store import Store
from parity.measure.free import Free, Key

Side = Literal["reference", "port"]


def first_nonfinite(
    case: str,
    matches: Sequence[Match],
    calls: tuple[Sequence[Call], Sequence[Call]],
    free: Free,
    store: Store,
) -> tuple[NonFinite, ...]:
    """The first such call of the reference and of the port; `calls` are all of each.

    Nothing if both sides are alike and what they return in the end is finite: a mask of infinities
    is no error. If they are not alike, what is alike on both is passed over.
    """
    differ = any(error.nonfinite for error in free.errors.values())
    ends = [array for one in calls for _, array in _floats(one[-1].outputs, store)]
    if not differ and all(np.isfinite(array).all() for array in ends):
        return ()
    alike = [
        (key, (match.port.order, leaf.port.name))
        for match in matches
        for leaf in match.outputs
        if leaf.port
        if (key := (match.ref.order, leaf.ref.name)) in free.errors
        if not free.errors[key].nonfinite
    ]
    sides: tuple[tuple[Side, set[Key]], ...] = (
        ("reference", {ref for ref, _ in alike}),
        ("port", {port for _, port in alike}),
    )
    found = (
        _first(side, case, of_side, same, differ, store)
        for (side, same), of_side in zip(sides, calls, strict=True)
    )
    return tuple(one for one in found if one is not None)


def _first(
    side: Side, case: str, calls: Sequence[Call], alike: set[Key], differ: bool, store: Store
) -> NonFinite | None:
    for call in calls:
        for leaf, array in _floats(call.outputs, store):
            same = (call.order, leaf.name) in alike
            if (differ and same) or np.isfinite(array).all():
                continue
            nan, fine = int(np.isnan(array).sum()), int(np.isfinite(array).sum())
            given = [inputs for _, inputs in _floats(call.inputs, store)]
            sizes = [np.abs(inputs[np.isfinite(inputs)]) for inputs in given]
            return NonFinite(
                side,
                case,
                call.path,
                call.kind,
                call.number,
                leaf.name,
                nan=nan,
                inf=array.size - fine - nan,
                size=array.size,
                largest=float(max((x.max(initial=0) for x in sizes), default=0)),
                given=sum(x.size for x in given) - sum(x.size for x in sizes),
                alike=same,
            )
    return None


def _floats(leaves: Sequence[Leaf], store: Store) -> list[tuple[Leaf, Array]]:
    return [
        (leaf, store.get(leaf.buffer))
        for leaf in leaves
        if leaf.buffer is not None and leaf.buffer.dtype.kind in "fcV"
    ]
