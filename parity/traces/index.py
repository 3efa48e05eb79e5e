"""The index of a golden trace, `trace.json`: what was recorded, of what, and in which file it lies.

It holds a digest of itself, so that a changed one is refused.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parity.traces.plain import encode, encode_skeleton
from parity.traces.shards import Form, Shard
from parity.core.calls import ModuleInfo
from parity.core.files import write_text
from parity.core.tree import Skeleton

NAME = "trace.json"

FORMAT = 3
"""Raised when another reader would misread a trace: with the form of `trace.json`, and with what is
recorded of a call or what its numbers mean. A trace of another version of the package or of its
dependencies can be used as long as this is the same."""

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
    `state` maps the names of the reference's state dict to its tensors. `only` and `depth` say
    which modules were recorded, as for `run`. `gaps` are what the pair says that its inputs leave
    out.
    """

    pair: str
    request: Mapping[str, Any]
    layout: Mapping[str, str]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]
    only: tuple[str, ...]
    depth: int | None
    modules: tuple[ModuleInfo, ...]
    tensors: tuple[StoredTensor, ...]
    state: Mapping[str, Form]
    weights: tuple[Shard, ...]
    gaps: tuple[str, ...] = ()
    cases: tuple[StoredCase, ...] = ()
    complete: bool = False

    @property
    def partial(self) -> bool:
        """Whether not every module was recorded."""
        return bool(self.only) or self.depth is not None

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All files."""
        return (*self.weights, *(shard for case in self.cases for shard in case.shards))


def write_index(folder: Path, index: Index) -> None:
    """Replace `trace.json` in one step."""
    content = {"format": FORMAT, **_plain(index)}
    signed = {"sha256": signature(content), **content}
    write_text(folder / NAME, json.dumps(signed, ensure_ascii=False, allow_nan=False) + "\n")


def signature(content: Mapping[str, Any]) -> str:
    """What a digest of the rest of `trace.json` must be."""
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
        case float() if not math.isfinite(value):
            return None if math.isnan(value) else repr(value)  # as `typed` reads it
        case Index() | StoredCall() | StoredTensor():
            return {key: _plain(item) for key, item in vars(value).items()}
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value
