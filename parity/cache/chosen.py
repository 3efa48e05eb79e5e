"""A trace of some modules only: those left out count with the module around them."""

from collections.abc import Collection
from dataclasses import replace

from parity.capture.recorder import without_taps
from parity.core.calls import Call, Trace


def chosen(trace: Trace, inside: Collection[str]) -> Trace:
    """The calls of these modules, of taps in their code and the outermost call, as they would have
    been recorded by themselves: `order` and `parent` are counted anew.
    """
    root = trace.calls[-1].path
    hidden = without_taps(trace.modules, root, inside)

    def is_kept(call: Call) -> bool:
        if call.parent == -1 or call.path in inside:
            return True
        around = trace.calls[call.parent].path
        return call.tapped and (around == root or around in inside) and around not in hidden

    kept = [call for call in trace.calls if is_kept(call)]
    place = {call.order: index for index, call in enumerate(kept)}
    place[-1] = -1

    def parent(call: Call) -> int:
        order = call.parent
        while order not in place:
            order = trace.calls[order].parent
        return place[order]

    calls = tuple(replace(call, order=place[call.order], parent=parent(call)) for call in kept)
    known = {root, *inside}
    modules = {path: info for path, info in trace.modules.items() if path in known}
    return replace(trace, calls=calls, modules=modules, hidden=trace.hidden & known)
