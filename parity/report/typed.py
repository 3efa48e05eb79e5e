"""Plain values, as JSON holds them, into records: strictly, by the types of their fields."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from parity.core.exceptions import InputError, shown

NUMBERS = {None: math.nan, "inf": math.inf, "-inf": -math.inf}
"""What stands for the floats that JSON does not have."""

NAMES = {int: "an integer", str: "a string", bool: "true or false"}


def typed(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint`: a record, a tuple, a mapping, `X | None`, or a plain type.

    Raises:
        InputError: it is of another; `where` is its place in the file.
    """
    if hint is Any:
        return value
    if hint is float:
        return _number(value, where)
    if hint in NAMES:
        if type(value) is not hint:
            raise _unexpected(NAMES[hint], value, where)
        return value
    if is_dataclass(hint):
        return _record(value, hint, where)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in args:
            raise _unexpected(f"one of {', '.join(args)}", value, where)
        return value
    if origin in (Union, UnionType):
        return None if value is None else typed(value, args[0], where)
    if origin is tuple:
        return _tuple(value, args, where)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise _unexpected("an object", value, where)
        return {name: typed(one, args[1], f"{where}.{name}") for name, one in value.items()}
    raise TypeError(f"{where}: a {hint} cannot be read from JSON")


def _number(value: Any, where: str) -> float:
    if isinstance(value, float) and math.isfinite(value):
        return value
    if type(value) is int and abs(value) < 2**1000:
        return float(value)
    if (value is None or isinstance(value, str)) and value in NUMBERS:
        return NUMBERS[value]
    raise _unexpected('a number, null, "inf" or "-inf"', value, where)


def _tuple(value: Any, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unexpected("a list", value, where)
    hints = [args[0]] * len(value) if args[-1] is Ellipsis else args
    if len(hints) != len(value):
        raise _unexpected(f"a list of {len(hints)}", value, where)
    pairs = enumerate(zip(value, hints, strict=True))
    return tuple(typed(one, hint, f"{where}[{number}]") for number, (one, hint) in pairs)


def _record(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _unexpected("an object", value, where)
    hints = _hints(kind)
    for name in hints:
        if name not in value:
            raise InputError(f"{where}: {name!r} is missing; was it written by another version?")
    for name in value:
        if name not in hints:
            raise InputError(
                f"{where}: {shown(name)} is unknown; was it written by another version?"
            )
    return kind(**{name: typed(value[name], hint, f"{where}.{name}")
                   for name, hint in hints.items()})  # fmt: skip


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _unexpected(expected: str, value: Any, where: str) -> InputError:
    return InputError(f"{where}: expected {expected}, found {shown(value)}")
