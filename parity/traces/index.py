"""The index of a golden trace, `trace.json`: what was recorded, of what, and in which file it lies.

It holds a digest of itself, so that a changed one is refused. Whoever may change a trace can change
that too: nothing in the file is believed, and every record refuses what no recording writes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.core.calls import ModuleInfo
from parity.core.codec import load, plain, stored_as, typed
from parity.core.exceptions import InputError
from parity.core.files import write_text
from parity.core.tree import Node, Skeleton, Slot
from parity.traces.plain import decode, decode_value, encode, encode_value
from parity.traces.shards import Form, Shard

NAME = "trace.json"

FORMAT = 4
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


CALL = ("path", "kind", "method", "number", "parent")
"""Fields that a `StoredCall` has in common with its `Call`."""


@dataclass(frozen=True)
class StoredLeaf:
    """A `Leaf` with the form of its array instead of its place in a store."""

    name: str
    form: Form | None
    value: Any = field(metadata=stored_as(encode_value, decode_value))
    moved: bool
    sure: bool


@dataclass(frozen=True)
class StoredCall:
    """A call of the reference; its `order` is its place in the list.

    In float64: `own` is what it returns while the calls inside it return what was recorded,
    `passed` its inputs as its parent computes them then, `whole` what it returns with all that is
    inside it, for a call with others inside. `problem` says why `whole` is not known.
    """

    path: str
    kind: str
    method: str
    number: int
    parent: int
    inputs: tuple[StoredLeaf, ...]
    outputs: tuple[StoredLeaf, ...]
    own: Wide = field(default_factory=dict)
    passed: Wide = field(default_factory=dict)
    whole: Wide = field(default_factory=dict)
    problem: str = ""

    def __post_init__(self) -> None:
        for leaf, more in (
            *(
                (leaf, wide.get(leaf.name))
                for leaf in self.outputs
                for wide in (self.own, self.whole)
            ),
            *((leaf, self.passed.get(leaf.name)) for leaf in self.inputs),
        ):
            if more and leaf.form and not more.adds_to(leaf.form):
                raise InputError(
                    f"{more.text} cannot be added to {leaf.form.text} of {leaf.name!r}"
                )


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
    arguments: Skeleton = field(metadata=stored_as(encode, decode))
    given: tuple[Form, ...]
    calls: tuple[StoredCall, ...]
    modules: tuple[ModuleInfo, ...]
    optional: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    problem: str
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        children = self.arguments.children if isinstance(self.arguments, Node) else ()
        if [one.kind for one in children if isinstance(one, Node)] != [tuple, dict]:
            raise InputError("arguments: expected a tuple and a dict of them")
        if sorted(_slots(self.arguments)) != list(range(len(self.given))):
            raise InputError(f"arguments: expected each of {len(self.given)} arrays once")
        above = [call.parent for call in self.calls]
        if above[-1:] != [-1] or not all(i < up < len(above) for i, up in enumerate(above[:-1])):
            raise InputError("calls: each but the last must be inside a later one")

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

    `request` is what was asked for, and of which code: a recording goes on only with the same.
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
    weights: tuple[Shard, ...] = ()
    gaps: tuple[str, ...] = ()
    cases: tuple[StoredCase, ...] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        if type(self.environment.get("seed")) is not int:
            raise InputError("environment.seed: expected an integer")
        if self.complete and not self.cases:
            raise InputError("has no case")
        for (name, path), count in Counter(case.key for case in self.cases).items():
            if count > 1:
                raise InputError(f"has {count} cases {name!r} of module {path!r}")

    @property
    def partial(self) -> bool:
        """True if some modules were left out."""
        return bool(self.only) or self.depth is not None

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All files."""
        return (*self.weights, *(shard for case in self.cases for shard in case.shards))

    @property
    def forms(self) -> Iterator[Form]:
        """All arrays, as often as they are named."""
        yield from (tensor.form for tensor in self.tensors)
        yield from self.state.values()
        for case in self.cases:
            yield from case.given
            for call in case.calls:
                yield from (leaf.form for leaf in (*call.inputs, *call.outputs) if leaf.form)
                for wide in (call.own, call.passed, call.whole):
                    yield from filter(None, wide.values())


def write_index(folder: Path, index: Index) -> None:
    """Replace `trace.json` in one step."""
    content = {"format": FORMAT, **plain(index)}
    signed = {"sha256": signature(content), **content}
    write_text(folder / NAME, json.dumps(signed, ensure_ascii=False, allow_nan=False) + "\n")


def read_index(folder: Path) -> Index:
    """Read `trace.json`.

    Raises:
        InputError: there is none, it is too large or of another format, or it was changed.
    """
    path = folder / NAME
    content = load(
        path, "index of a golden trace", FORMAT, "the folder that `parity record` wrote", AGAIN
    )
    if content.pop("sha256", None) != signature(content):
        raise InputError(f"{path}: changed since it was recorded (SHA-256 differs); {AGAIN}")
    del content["format"]
    try:
        return typed(content, Index, str(path))  # type: ignore[no-any-return]
    except InputError as error:
        raise InputError(f"{error}; {AGAIN}") from error


def signature(content: Mapping[str, Any]) -> str:
    """The digest of the rest of `trace.json`."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _slots(skeleton: Skeleton) -> list[int]:
    if isinstance(skeleton, Slot):
        return [skeleton.index]
    children = skeleton.children if isinstance(skeleton, Node) else ()
    return [index for child in children for index in _slots(child)]
