"""Values as JSON has them: arguments that are no arrays, and what holds the arrays.

Nothing that is read is run: an object that JSON has no form for comes back as an `Opaque`, which
only tells its class.
"""

import math
from collections.abc import Mapping
from typing import Any

from parity.core.exceptions import InputError
from parity.core.tree import Node, Skeleton, Slot, Static


class Opaque:
    """Stands for an object that a trace cannot hold; its class has the name of that object's."""


def encode(value: Any) -> Any:
    """A leaf that is no array: as it is, or an object with one key that says what it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if type(value) is bytes:
        return {"bytes": value.hex()}
    return {"opaque": type(value).__name__}


def decode(value: Any) -> Any:
    """The leaf that was encoded so."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    match kind:
        case "float":
            return float(held)
        case "complex":
            return complex(*map(decode, held))
        case "bytes":
            return bytes.fromhex(held)
        case "opaque":
            return type(str(held), (Opaque,), {})()
    raise ValueError(f"unknown kind of value {kind!r}")


def encode_skeleton(skeleton: Skeleton) -> Any:
    """Nested tuples, lists and dicts, with the numbers of arrays in them.

    Raises:
        InputError: something else is among them.
    """
    match skeleton:
        case Slot(index):
            return {"array": index}
        case Static(value):
            held = encode(value)
            if isinstance(held, dict) and "opaque" in held:
                raise InputError(_refused(type(value)))
            return {"value": held}
        case Node(kind, keys, children):
            inner = [encode_skeleton(child) for child in children]
            if kind in (tuple, list):
                return {kind.__name__: inner}
            if issubclass(kind, Mapping) and all(isinstance(key, str) for key in keys):
                return {"dict": dict(zip(keys, inner, strict=True))}
            raise InputError(_refused(kind))


def decode_skeleton(value: Any) -> Skeleton:
    """The skeleton that was encoded so; mappings are dicts."""
    ((kind, held),) = value.items()
    match kind:
        case "array":
            return Slot(int(held))
        case "value":
            return Static(decode(held))
        case "dict":
            return Node(dict, tuple(held), _children(held.values()))
        case "tuple" | "list":
            return Node({"tuple": tuple, "list": list}[kind], tuple(range(len(held))),
                        _children(held))  # fmt: skip
    raise ValueError(f"unknown kind of container {kind!r}")


def _children(held: Any) -> tuple[Skeleton, ...]:
    return tuple(decode_skeleton(child) for child in held)


def _refused(kind: type) -> str:
    return (
        f"an argument holds a {kind.__name__}: a golden trace has arrays, plain values, tuples,"
        " lists and dicts only"
    )
