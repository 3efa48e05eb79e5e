"""Recorded calls as JSON, with places for their arrays, and back.

Nothing that is read is run, and no module is imported for it: classes that hold arrays are those
which the process has loaded.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from parity.cache.code import Unknown
from parity.cache.pack import Damaged, Place
from parity.core.calls import Call, Leaf, ModuleInfo, Trace
from parity.core.store import Buffer
from parity.core.tree import Node, Skeleton, Slot, Static
from parity.traces.plain import decode, encode

_TORCH = (torch.dtype, torch.device, torch.memory_format)


def to_plain(trace: Trace, put: Callable[[Buffer], Place]) -> dict[str, Any]:
    """The trace as JSON has it; `put` writes an array.

    Raises:
        Unknown: an argument or a result is something that JSON cannot hold.
    """

    def leaf(one: Leaf) -> list[Any]:
        held = None if one.buffer is None else put(one.buffer).plain()
        return [one.name, held, _value(one.value), one.moved, one.sure]

    return {
        "calls": [
            {
                **{name: getattr(call, name) for name in _PLAIN},
                "inputs": [leaf(one) for one in call.inputs],
                "outputs": [leaf(one) for one in call.outputs],
                "arguments": _skeleton(call.arguments),
                "returned": _skeleton(call.returned),
            }
            for call in trace.calls
        ],
        "modules": [[path, asdict(info)] for path, info in trace.modules.items()],
        "stateful": trace.stateful,
    }


_PLAIN = ("path", "kind", "method", "number", "order", "parent", "in_place")


def from_plain(content: Mapping[str, Any], adopt: Callable[[Place], Buffer]) -> Trace:
    """The trace that was written; `adopt` makes a buffer of what lies in the pack.

    Raises:
        Damaged: a class is not the one that it was.
    """

    def leaf(value: list[Any]) -> Leaf:
        name, held, plain, moved, sure = value
        buffer = None if held is None else adopt(Place.read(held))
        return Leaf(name, buffer, _plain_value(plain), moved=moved, sure=sure)

    calls = tuple(
        Call(
            **{name: one[name] for name in _PLAIN},
            inputs=tuple(map(leaf, one["inputs"])),
            outputs=tuple(map(leaf, one["outputs"])),
            arguments=_built(one["arguments"]),
            returned=_built(one["returned"]),
        )
        for one in content["calls"]
    )
    modules = {path: ModuleInfo(**one) for path, one in content["modules"]}
    return Trace(calls, modules, stateful=bool(content["stateful"]))


def _value(value: Any) -> Any:
    if isinstance(value, _TORCH):
        return {"torch": str(value), "kind": type(value).__name__}
    held = encode(value)
    if isinstance(held, dict) and "opaque" in held:
        raise Unknown(f"a call is given or returns a {held['opaque']}")
    return held


def _plain_value(value: Any) -> Any:
    if not (isinstance(value, dict) and "torch" in value):
        return decode(value)
    text = value["torch"]
    return torch.device(text) if value["kind"] == "device" else getattr(torch, text[6:])


def _skeleton(skeleton: Skeleton | None) -> Any:
    match skeleton:
        case None:
            return None
        case Slot(index):
            return index
        case Static(value):
            return {"value": _value(value)}
        case Node(kind, keys, children):
            name = f"{kind.__module__}:{kind.__qualname__}"
            if _found(name) is not kind:
                raise Unknown(f"a call is given or returns a {kind.__qualname__} without a home")
            inner = [_skeleton(child) for child in children]
            return {"node": name, "keys": [_value(key) for key in keys], "children": inner}


def _built(value: Any) -> Skeleton | None:
    if value is None:
        return None
    if isinstance(value, int):
        return Slot(value)
    if "value" in value:
        return Static(_plain_value(value["value"]))
    kind = _found(value["node"])
    if not (isinstance(kind, type) and _holds(kind)):
        raise Damaged(f"{value['node']} is no class that holds arrays")
    keys = tuple(map(_plain_value, value["keys"]))
    children = tuple(child for one in value["children"] if (child := _built(one)) is not None)
    return Node(kind, keys, children)


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _holds(kind: type) -> bool:
    return issubclass(kind, (Mapping, list, tuple)) or dataclasses.is_dataclass(kind)
