"""The index of a golden trace, `trace.json`: what was recorded, of what, and in which file it lies.

It holds a digest of itself, so that a changed one is refused.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parity.errors import InputError, first_line
from parity.golden.plain import decode, decode_skeleton, encode, encode_skeleton
from parity.golden.shards import PATTERN, Form, Shard, dtype_of
from parity.records import ModuleInfo
from parity.report.write import write_text
from parity.tree import Skeleton

NAME = "trace.json"

FORMAT = 1
"""Raised when a reader of the older form would misread the new one, or refuse it for no reason."""

NOT_OFFLINE = (
    "pair {!r} does not say how its port is made without torch; give it offline=parity.Offline(...)"
)

AGAIN = "record it again with `parity record`"

Wide = Mapping[str, Form | None]
"""By leaf, what to add in float64 to the recorded array to get the reference's own in float64;
`None` where that is nothing."""


@dataclass(frozen=True)
class StoredLeaf:
    """A `Leaf` with the form of its array instead of its place in a store."""

    name: str
    form: Form | None
    value: Any
    moved: bool
    sure: bool


@dataclass(frozen=True)
class StoredCall:
    """A call of the reference; its `order` is its place in the list.

    In float64: `own` is what it returns while the calls inside it return what was recorded,
    `handed` what its parent hands to it then, `whole` what it returns with all that is inside it,
    for a call with others inside. `problem` says why `whole` is not known.
    """

    path: str
    kind: str
    method: str
    number: int
    parent: int
    inputs: tuple[StoredLeaf, ...]
    outputs: tuple[StoredLeaf, ...]
    own: Wide = field(default_factory=dict)
    handed: Wide = field(default_factory=dict)
    whole: Wide = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class StoredCase:
    """One case: what to call on the port and with what, and all that the reference did.

    `nnx` and `shipped` are names as `methods` gives them. `problem` says why the reference did not
    run in float64.
    """

    name: str
    path: str
    nnx: str
    shipped: str | None
    depth: int | None
    floor: bool
    r_limit: float | None
    arguments: Skeleton
    given: tuple[Form, ...]
    calls: tuple[StoredCall, ...]
    modules: tuple[ModuleInfo, ...]
    optional: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    problem: str
    shards: tuple[Shard, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Cases of one name differ in the module that they call."""
        return self.name, self.path


@dataclass(frozen=True)
class StoredTensor:
    """A parameter or buffer of the reference; `identity` is equal for one that modules share."""

    path: str
    name: str
    buffer: bool
    identity: int
    form: Form


@dataclass(frozen=True)
class Index:
    """All of `trace.json`.

    `request` is what was asked for, and of which models: a recording goes on only with the same.
    `state` maps the names of the reference's state dict to its tensors. `only` is the glob of the
    modules that were recorded. `gaps` are what the pair says that its inputs leave out.
    """

    pair: str
    request: Mapping[str, Any]
    layout: Mapping[str, str]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]
    only: str | None
    modules: tuple[ModuleInfo, ...]
    tensors: tuple[StoredTensor, ...]
    state: Mapping[str, Form]
    weights: tuple[Shard, ...]
    gaps: tuple[str, ...] = ()
    cases: tuple[StoredCase, ...] = ()
    complete: bool = False

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All files."""
        return (*self.weights, *(shard for case in self.cases for shard in case.shards))


def version() -> str:
    """Of the package that writes and reads traces."""
    return importlib.metadata.version("jaxvae")


def write_index(folder: Path, index: Index) -> None:
    """Replace `trace.json` in one step."""
    content = {"format": FORMAT, "version": version(), **_plain(index)}
    signed = {"sha256": _digest(content), **content}
    write_text(folder / NAME, json.dumps(signed, ensure_ascii=False, allow_nan=False) + "\n")


def read_index(folder: Path) -> Index:
    """Read `trace.json`.

    Raises:
        InputError: there is none, another version wrote it, or it was changed.
    """
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give the folder that `parity record` wrote"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({first_line(error)}); {AGAIN}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{path}: not the index of a golden trace; {AGAIN}")
    if content["format"] != FORMAT:
        raise InputError(
            f"{path}: format {content['format']!r}, this version reads {FORMAT}; {AGAIN}"
        )
    if content.get("version") != version():
        found = content.get("version")
        raise InputError(f"{path}: recorded by version {found}, this is {version()}; {AGAIN}")
    if content.pop("sha256", None) != _digest(content):
        raise InputError(f"{path}: changed since it was recorded (SHA-256 differs); {AGAIN}")
    try:
        index = _index(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not an index of this format ({first_line(error)})") from error
    for shard in index.shards:
        if not PATTERN.fullmatch(shard.name):
            raise InputError(f"{path}: names {shard.name!r}, which is no file of a trace; refused")
    return index


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Records as JSON; a `Form` is a list of digest, shape and type."""
    match value:
        case Form(digest, shape, dtype):
            return [digest, list(shape), dtype.name]
        case StoredLeaf(name, None, held, _, _):
            return {"name": name, "value": encode(held)}
        case StoredLeaf(name, form, _, moved, sure):
            return {"name": name, "array": _plain(form), "moved": moved, "sure": sure}
        case StoredCase():
            fields = {key: _plain(item) for key, item in vars(value).items() if key != "arguments"}
            return {**fields, "arguments": encode_skeleton(value.arguments)}
        case ModuleInfo() | Shard():
            return asdict(value)
        case Index() | StoredCall() | StoredTensor():
            return {key: _plain(item) for key, item in vars(value).items()}
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value


def _index(content: Mapping[str, Any]) -> Index:
    return Index(
        pair=str(content["pair"]),
        request=content["request"],
        layout=content["layout"],
        settings=content["settings"],
        environment=content["environment"],
        facts=content["facts"],
        only=content["only"],
        modules=tuple(ModuleInfo(**one) for one in content["modules"]),
        tensors=tuple(StoredTensor(**{**one, "form": _form(one["form"])})
                      for one in content["tensors"]),
        state={name: _form(form) for name, form in content["state"].items()},
        weights=tuple(map(_shard, content["weights"])),
        gaps=tuple(content["gaps"]),
        cases=tuple(map(_case, content["cases"])),
        complete=content["complete"],
    )  # fmt: skip


def _case(value: Mapping[str, Any]) -> StoredCase:
    return StoredCase(
        **{
            **value,
            "arguments": decode_skeleton(value["arguments"]),
            "given": tuple(map(_form, value["given"])),
            "calls": tuple(map(_call, value["calls"])),
            "modules": tuple(ModuleInfo(**one) for one in value["modules"]),
            "optional": {kind: tuple(names) for kind, names in value["optional"].items()},
            "notes": tuple(value["notes"]),
            "shards": tuple(map(_shard, value["shards"])),
        }
    )


def _call(value: Mapping[str, Any]) -> StoredCall:
    wide = {
        name: {leaf: None if form is None else _form(form) for leaf, form in value[name].items()}
        for name in ("own", "handed", "whole")
    }
    leaves = {name: tuple(map(_leaf, value[name])) for name in ("inputs", "outputs")}
    return StoredCall(**{**value, **wide, **leaves})


def _leaf(value: Mapping[str, Any]) -> StoredLeaf:
    if "array" not in value:
        return StoredLeaf(value["name"], None, decode(value["value"]), moved=False, sure=True)
    form = _form(value["array"])
    return StoredLeaf(value["name"], form, None, value["moved"], value["sure"])


def _form(value: Sequence[Any]) -> Form:
    digest, shape, dtype = value
    bytes.fromhex(digest)
    return Form(digest, tuple(map(int, shape)), dtype_of(dtype))


def _shard(value: Mapping[str, Any]) -> Shard:
    return Shard(**{**value, "digests": tuple(value["digests"])})
