"""A trace of some modules only: those left out count with the module around them."""

from collections.abc import Collection
from dataclasses import replace

from parity.records import Call, Trace


def chosen(trace: Trace, paths: Collection[str]) -> Trace:
    """The calls of these modules and the outermost one, with `order` and `parent` counted anew."""
    kept = [call for call in trace.calls if call.parent == -1 or call.path in paths]
    place = {call.order: index for index, call in enumerate(kept)}
    place[-1] = -1

    def around(call: Call) -> int:
        parent = call.parent
        while parent not in place:
            parent = trace.calls[parent].parent
        return place[parent]

    calls = tuple(replace(call, order=place[call.order], parent=around(call)) for call in kept)
    known = {call.path for call in kept if call.parent == -1} | set(paths)
    modules = {path: info for path, info in trace.modules.items() if path in known}
    return replace(trace, calls=calls, modules=modules, hidden=trace.hidden & known)
