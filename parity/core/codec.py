"""Frozen dataclasses as JSON and back, strictly by the types of their fields.

Nothing that is read is run: a file makes plain values and the records that the reader names. One
that refuses its fields raises `ValueError` in `__post_init__`, to which the reader adds the place.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from parity.core.exceptions import InputError, first_line, shown

LARGEST = 1 << 28
"""Bytes of a file: it is read as a whole, and 100,000 rows or calls take less than this."""

NUMBERS = {None: math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floats that JSON does not have, by what stands for them."""

NAMES = {int: "an integer", str: "a string", bool: "true or false"}


def stored_as(
    write: Callable[[Any], Any], read: Callable[[Any], Any]
) -> Mapping[str, Callable[[Any], Any]]:
    """Metadata of a field that is stored in a form of its own; `read` raises `ValueError`."""
    return {"write": write, "read": read}


def string(value: Any) -> str:
    """`value` as it is; `ValueError` if it is no string."""
    if not isinstance(value, str):
        raise ValueError(f"expected a string, found {shown(value)}")
    return value


class Form(NamedTuple):
    """The form of a field in a file; `read` takes the place there as well."""

    hint: Any
    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


@cache
def forms(kind: Any) -> Mapping[str, Form]:
    """The forms of a record's fields."""
    hints = get_type_hints(kind)
    return {field.name: _form(hints[field.name], field.metadata) for field in fields(kind)}


def plain(value: Any) -> Any:
    """A record, or what holds records, as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{value}"
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: form.write(getattr(value, name)) for name, form in forms(kind).items()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


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
        found = _object(value, where)
        return {name: typed(one, args[1], f"{where}.{name}") for name, one in found.items()}
    raise TypeError(f"{where}: a {hint} cannot be read from JSON")


def load(path: Path, what: str, number: int, give: str, again: str) -> dict[str, Any]:
    """The object in a JSON file of `what`, which holds the number of its format.

    Raises:
        InputError: there is no such file, it is too large, no JSON, or of another format.
    """
    try:
        if not path.is_file():
            missing = "not a file" if path.exists() else "no such file"
            raise InputError(f"{path}: {missing}; give {give}")
        size = path.stat().st_size
        if size > LARGEST:
            raise InputError(f"{path}: {size} bytes, at most {LARGEST} can be read")
        content = json.loads(path.read_text("utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give {give}") from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        raise InputError(f"{path}: no JSON, or cut short ({reason}); {again}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{path}: no {what}, which tells its format; {again}")
    found = content["format"]
    if type(found) is not int or found != number:
        raise InputError(f"{path}: format {shown(found)}, this version reads {number}; {again}")
    return content


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


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


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unexpected("an object", value, where)
    return value


def _record(value: Any, kind: Any, where: str) -> Any:
    found, known = _object(value, where), forms(kind)
    for name in [*known, *found]:
        if name not in found or name not in known:
            problem = "unknown" if name in found else "missing"
            raise InputError(
                f"{where}: {shown(name)} is {problem}; was it written by another version?"
            )
    held = {name: form.read(found[name], f"{where}.{name}") for name, form in known.items()}
    with _refusals(where):
        return kind(**held)


def _form(hint: Any, metadata: Mapping[str, Any]) -> Form:
    def own(value: Any, where: str) -> Any:
        with _refusals(where):
            return metadata["read"](value)

    if metadata:
        return Form(hint, metadata["write"], own)
    return Form(hint, plain, lambda value, where: typed(value, hint, where))


@contextmanager
def _refusals(where: str) -> Iterator[None]:
    """Errors of a record or of a field's own form, with the place in the file."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {error}") from error


def _unexpected(expected: str, value: Any, where: str) -> InputError:
    return InputError(f"{where}: expected {expected}, found {shown(value)}")
