"""`trace.json` read back: only what `write_index` writes is taken.

Whoever may change a trace can change its digest too: nothing in the file is believed.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError, first_line
from parity.traces.index import (
    AGAIN,
    FORMAT,
    NAME,
    Index,
    StoredCall,
    StoredCase,
    StoredLeaf,
    StoredTensor,
    Wide,
    signature,
)
from parity.traces.plain import decode, decode_skeleton
from parity.traces.shards import PATTERN, Form, Shard, dtype_of
from parity.core.calls import ModuleInfo
from parity.report.typed import typed
from parity.core.tree import Node, Skeleton, Slot

LARGEST = 1 << 28
"""Bytes of an index: it is read as a whole, and 100,000 calls take less than this."""

DIMENSIONS = 32
"""Of an array, at most: every NumPy has them."""

_DIGEST = re.compile(r"[0-9a-f]{32}")

_Form = tuple[str, tuple[int, ...], str]
_Wide = Mapping[str, _Form | None]


@dataclass(frozen=True)
class _Call:
    path: str
    kind: str
    method: str
    number: int
    parent: int
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    own: _Wide
    handed: _Wide
    whole: _Wide
    problem: str


@dataclass(frozen=True)
class _Array:
    name: str
    array: _Form
    moved: bool
    sure: bool


@dataclass(frozen=True)
class _Value:
    name: str
    value: Any


@dataclass(frozen=True)
class _Case:
    name: str
    path: str
    nnx: str
    shipped: str | None
    depth: int | None
    floor: bool
    r_limit: float | None
    arguments: Any
    given: tuple[_Form, ...]
    calls: tuple[_Call, ...]
    modules: tuple[ModuleInfo, ...]
    optional: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    problem: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class _Tensor:
    path: str
    name: str
    buffer: bool
    identity: int
    form: _Form


@dataclass(frozen=True)
class _Environment:
    seed: int


@dataclass(frozen=True)
class _Document:
    """The document. `Any` is what the recording machine, or the pair, says of itself."""

    format: int
    pair: str
    request: Mapping[str, Any]
    layout: Mapping[str, str]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]
    only: tuple[str, ...]
    depth: int | None
    modules: tuple[ModuleInfo, ...]
    tensors: tuple[_Tensor, ...]
    state: Mapping[str, _Form]
    weights: tuple[Shard, ...]
    gaps: tuple[str, ...]
    cases: tuple[_Case, ...]
    complete: bool


def read_index(folder: Path) -> Index:
    """Read `trace.json`.

    Raises:
        InputError: there is none, it is too large or of another format, or it was changed.
    """
    path = folder / NAME
    content = _load(path)
    number = content.get("format")
    if "format" not in content:
        raise InputError(f"{path}: not the index of a golden trace (no format in it); {AGAIN}")
    if type(number) is not int or number != FORMAT:
        raise InputError(f"{path}: format {_short(number)}, this version reads {FORMAT}; {AGAIN}")
    if content.pop("sha256", None) != signature(content):
        raise InputError(f"{path}: changed since it was recorded (SHA-256 differs); {AGAIN}")
    try:
        return _index(typed(content, _Document, str(path)), str(path))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not an index of this format ({first_line(error)})") from error


def _load(path: Path) -> dict[str, Any]:
    """The object in the file."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise InputError(f"{path}: {size} bytes; an index has at most {LARGEST}")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give the folder that `parity record` wrote"
        ) from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({first_line(error)}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not the index of a golden trace; {AGAIN}")
    return content


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _index(document: _Document, where: str) -> Index:
    fields = {
        **vars(document),
        "tensors": tuple(StoredTensor(**{**vars(one), "form": _form(one.form)})
                         for one in document.tensors),
        "state": {name: _form(form) for name, form in document.state.items()},
        "cases": tuple(_case(one, f"{where}.cases[{i}]") for i, one in enumerate(document.cases)),
    }  # fmt: skip
    del fields["format"]
    typed({"seed": document.environment.get("seed")}, _Environment, f"{where}.environment")
    index = Index(**fields)
    for shard in index.shards:
        if not PATTERN.fullmatch(shard.name):
            raise InputError(f"{where}: names {shard.name!r}, which is no file of a trace; refused")
    return index


def _case(case: _Case, where: str) -> StoredCase:
    skeleton = decode_skeleton(case.arguments)
    arguments = skeleton.children if isinstance(skeleton, Node) else ()
    if [one.kind for one in arguments if isinstance(one, Node)] != [tuple, dict]:
        raise InputError(f"{where}.arguments: expected a tuple and a dict of them; {AGAIN}")
    if sorted(_slots(skeleton)) != list(range(len(case.given))):
        raise InputError(
            f"{where}.arguments: expected each of {len(case.given)} arrays once; {AGAIN}"
        )
    parents = [call.parent for call in case.calls]
    if parents[-1:] != [-1] or not all(i < up < len(parents) for i, up in enumerate(parents[:-1])):
        raise InputError(f"{where}.calls: each but the last must be inside a later one; {AGAIN}")
    return StoredCase(
        **{
            **vars(case),
            "arguments": skeleton,
            "given": tuple(map(_form, case.given)),
            "calls": tuple(_call(one, f"{where}.calls[{i}]") for i, one in enumerate(case.calls)),
        }
    )


def _slots(skeleton: Skeleton) -> list[int]:
    if isinstance(skeleton, Slot):
        return [skeleton.index]
    children = skeleton.children if isinstance(skeleton, Node) else ()
    return [index for child in children for index in _slots(child)]


def _call(call: _Call, where: str) -> StoredCall:
    def leaves(found: Sequence[Any], name: str) -> tuple[StoredLeaf, ...]:
        return tuple(_leaf(one, f"{where}.{name}[{i}]") for i, one in enumerate(found))

    read: Mapping[str, Callable[[Any], Any]] = {
        "inputs": lambda found: leaves(found, "inputs"),
        "outputs": lambda found: leaves(found, "outputs"),
        **dict.fromkeys(("own", "handed", "whole"), _wide),
    }
    return StoredCall(**{name: read.get(name, _same)(held) for name, held in vars(call).items()})


def _same(value: Any) -> Any:
    return value


def _wide(wide: _Wide) -> Wide:
    return {leaf: None if form is None else _form(form) for leaf, form in wide.items()}


def _leaf(value: Any, where: str) -> StoredLeaf:
    if isinstance(value, dict) and "array" in value:
        array = typed(value, _Array, where)
        return StoredLeaf(array.name, _form(array.array), None, array.moved, array.sure)
    plain = typed(value, _Value, where)
    return StoredLeaf(plain.name, None, decode(plain.value), moved=False, sure=True)


def _form(form: _Form) -> Form:
    digest, shape, name = form
    if len(shape) > DIMENSIONS or any(not 0 <= size < 1 << 48 for size in shape):
        raise InputError(f"{shape} is no shape of an array; {AGAIN}")
    if not _DIGEST.fullmatch(digest):
        raise InputError(f"{digest!r} is no digest of an array; {AGAIN}")
    return Form(digest, shape, dtype_of(name))
