"""Values as JSON has them: arguments that are no arrays, and what holds the arrays.

Nothing that is read is run: an object that JSON has no form for comes back as an `Opaque`, which
only tells its class.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from parity.core.exceptions import InputError, shown
from parity.core.tree import Node, Skeleton, Slot, Static

READERS: Mapping[str, Callable[[str], Any]] = {
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "opaque": lambda name: type(name, (Opaque,), {})(),
}
"""Values of which JSON has the text only, by the name of their type."""


class Opaque:
    """Stands for an object that a trace cannot hold; its class has the name of that object's."""


def encode(skeleton: Skeleton) -> Any:
    """Values of JSON as they are; for all else an object with one key that says what it is.

    Raises:
        InputError: something other than arrays, plain values and their containers is among them.
    """
    match skeleton:
        case Slot(index):
            return {"array": index}
        case Static(value):
            held = encode_value(value)
            if isinstance(held, dict) and "opaque" in held:
                raise _refused(type(value))
            return held
        case Node(kind, keys, children):
            inner = [encode(child) for child in children]
            if kind in (tuple, list):
                return {kind.__name__: inner}
            if issubclass(kind, Mapping) and all(isinstance(key, str) for key in keys):
                return {"dict": dict(zip(keys, inner, strict=True))}
            raise _refused(kind)


def decode(value: Any) -> Skeleton:
    """The skeleton that was encoded so; mappings are dicts.

    Raises:
        InputError: none is.
    """
    if not isinstance(value, (dict, list)):
        return Static(value)
    match [*value.items()] if isinstance(value, dict) else value:
        case [("array", int(index))]:
            return Slot(index)
        case [("dict", dict(held))]:
            return Node(dict, tuple(held), tuple(map(decode, held.values())))
        case [("tuple" | "list" as kind, list(held))]:
            container = tuple if kind == "tuple" else list
            return Node(container, tuple(range(len(held))), tuple(map(decode, held)))
        case [(str(kind), str(text))] if kind in READERS:
            return Static(READERS[kind](text))
    raise InputError(f"expected a value, an array or what holds them, found {shown(value)}")


def encode_value(value: Any) -> Any:
    """A leaf that is no array; of an object that JSON has no form for the name of its class."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind in (float, complex):
        return {kind.__name__: repr(value)}
    return {"bytes": value.hex()} if kind is bytes else {"opaque": kind.__name__}


def decode_value(value: Any) -> Any:
    """The leaf that was encoded so.

    Raises:
        InputError: it is no leaf, or an array.
    """
    found = decode(value)
    if isinstance(found, Static):
        return found.value
    raise InputError(f"expected a value, found {shown(value)}")


def _refused(kind: type) -> InputError:
    return InputError(
        f"an argument holds a {kind.__name__}: a golden trace has arrays, plain values, tuples,"
        " lists and dicts only"
    )
