"""Calls of the reference whose code draws random numbers, or returns something else each time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from parity.capture.recorder import Subtree
from parity.core.calls import Call, Leaf, Trace, above
from parity.core.exceptions import first_line
from parity.core.globs import path_name
from parity.core.metrics import distance, unit_roundoff
from parity.core.store import Store

ROUNDINGS = 64.0
"""Units of roundoff by which two runs may differ: threads may add in another order."""


def with_random(trace: Trace, run: Callable[..., Trace], store: Store, subtree: Subtree) -> Trace:
    """The recorded run, with its calls marked that return another thing in a second one.

    `run` records it again, from the same state but for random streams: first the outermost call
    alone, and all of the `subtree` where that is not what it was. One that raises then hangs on
    what was before: the outermost call is marked, with what it raised.
    """
    root = trace.calls[-1]
    try:
        alone = run(subtree=Subtree(subtree.prefix, ()))
        if _same(root.outputs, alone.calls[-1].outputs, store):
            return trace
        again = {(call.path, call.number): call for call in run(subtree=subtree).calls}
    except Exception as error:  # whatever the reference's code raises
        said = f"{path_name(root.path)} (run again it raises {first_line(error)})"
        return replace(trace, calls=(*trace.calls[:-1], replace(root, random=said)))
    parents = {call.order: call.parent for call in trace.calls}
    around: set[int] = set()
    calls: list[Call] = []
    for call in trace.calls:  # a call returns after those inside it
        other = again.get((call.path, call.number))
        same = other is None or _same(call.outputs, other.outputs, store)
        if other and not same and _same(call.inputs, other.inputs, store):
            if call.order not in around:
                call = replace(call, random=path_name(call.path))
            around |= {*above(call.order, parents)}
        calls.append(call)
    return replace(trace, calls=tuple(calls))


def _same(leaves: Sequence[Leaf], others: Sequence[Leaf], store: Store) -> bool:
    """True if the leaves are the same but for rounding."""
    return len(leaves) == len(others) and all(
        one.name == other.name and _equal(one, other, store)
        for one, other in zip(leaves, others, strict=True)
    )


def _equal(one: Leaf, other: Leaf, store: Store) -> bool:
    if one.buffer is None or other.buffer is None:
        plain = isinstance(one.value, (bool, int, float, complex, str, bytes))
        return one.buffer is other.buffer and (not plain or one.value == other.value)
    if one.buffer == other.buffer or one.buffer.shape != other.buffer.shape:
        return one.buffer == other.buffer
    _, off, nonfinite = distance(store.get(one.buffer), store.get(other.buffer))
    return not nonfinite and off <= ROUNDINGS * unit_roundoff(one.buffer.dtype)
