"""The index of a golden trace, `trace.json`: what was recorded, of what, and with which arrays.

It holds a digest of itself, so that a changed one is refused. Whoever may change a trace can change
that too: nothing in the file is believed, and every record refuses what no recording writes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.core.calls import Call, Leaf, ModuleInfo, Trace
from parity.core.codec import load, plain, stored_as, typed
from parity.core.exceptions import InputError
from parity.core.files import write_text
from parity.core.plain import decode, encode
from parity.core.store import Buffer
from parity.core.tree import Node, Skeleton, Slot
from parity.traces.arrays import AGAIN

NAME = "trace.json"

FORMAT = 5
"""Raised when another reader would misread a trace: with the form of `trace.json`, and with what is
recorded of a call or what its numbers mean. A trace of another version of the package or of its
dependencies can be used as long as this is the same."""

Wide = Mapping[str, Buffer | None]
"""By leaf, what to add in float64 to the recorded array to get the reference's own in float64;
`None` where that is nothing."""


@dataclass(frozen=True)
class Float64Call:
    """A call of the reference in float64.

    `own` is what it returns while the calls inside it return what was recorded, `passed` its inputs
    as its parent computes them then, `whole` what it returns with all that is inside it, for a call
    with others inside. `problem` says why `whole` is not known.
    """

    own: Wide = field(default_factory=dict)
    passed: Wide = field(default_factory=dict)
    whole: Wide = field(default_factory=dict)
    problem: str = ""

    def check(self, call: Call) -> None:
        """Refuse what cannot be added to the arrays of this call."""
        parts = ((self.own, call.outputs), (self.whole, call.outputs), (self.passed, call.inputs))
        for wide, leaves in parts:
            for leaf in leaves:
                more = wide.get(leaf.name)
                if more and leaf.buffer and not _adds(more, leaf.buffer):
                    raise InputError(
                        f"{more.text} cannot be added to {leaf.buffer.text} of {leaf.name!r}"
                    )


def _adds(more: Buffer, to: Buffer) -> bool:
    kind = "complex64" if to.dtype.kind == "c" else "float32"
    return (more.shape, more.dtype.name) == (to.shape, kind)


@dataclass(frozen=True)
class StoredCase:
    """One case: what to call on the port and with what, and all that the reference did.

    `nnx` and `shipped` are names as `methods` gives them. `free` says that its inputs depend on no
    case before. `float64` has each of the `calls` in float64, and `problem` says why the reference
    did not run so.
    """

    name: str
    path: str
    nnx: str
    shipped: str | None
    depth: int | None
    floor: bool
    r_limit: float | None
    arguments: Skeleton = field(metadata=stored_as(encode, decode))
    given: tuple[Buffer, ...]
    free: bool
    calls: tuple[Call, ...]
    float64: tuple[Float64Call, ...]
    modules: tuple[ModuleInfo, ...]
    optional: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    problem: str

    def __post_init__(self) -> None:
        children = self.arguments.children if isinstance(self.arguments, Node) else ()
        if [one.kind for one in children if isinstance(one, Node)] != [tuple, dict]:
            raise InputError("arguments: expected a tuple and a dict of them")
        if sorted(_slots(self.arguments)) != list(range(len(self.given))):
            raise InputError(f"arguments: expected each of {len(self.given)} arrays once")
        above = [call.parent for call in self.calls]
        if above[-1:] != [-1] or not all(i < up < len(above) for i, up in enumerate(above[:-1])):
            raise InputError("calls: each but the last must be inside a later one")
        if [call.order for call in self.calls] != list(range(len(above))):
            raise InputError("calls: expected the order of each to be its place")
        if len(self.float64) != len(self.calls):
            raise InputError(f"float64: expected {len(self.calls)}, found {len(self.float64)}")
        for call, wide in zip(self.calls, self.float64, strict=True):
            wide.check(call)

    @property
    def key(self) -> tuple[str, str]:
        """Cases of one name differ in the module that they call."""
        return self.name, self.path

    @property
    def trace(self) -> Trace:
        """The recorded calls."""
        return Trace(self.calls, {info.path: info for info in self.modules})


@dataclass(frozen=True)
class StoredTensor:
    """A parameter or buffer of the reference; `identity` is equal for one that modules share."""

    path: str
    name: str
    buffer: bool
    identity: int
    values: Buffer


@dataclass(frozen=True)
class Index:
    """All of `trace.json`.

    `state` maps the names of the reference's state dict to its tensors. `only` and `depth` say
    which modules were recorded, as for `run`. `gaps` are what the pair says that its inputs leave
    out.
    """

    pair: str
    layout: Mapping[str, str]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]
    only: tuple[str, ...]
    depth: int | None
    modules: tuple[ModuleInfo, ...]
    tensors: tuple[StoredTensor, ...]
    state: Mapping[str, Buffer]
    gaps: tuple[str, ...]
    cases: tuple[StoredCase, ...]

    def __post_init__(self) -> None:
        if type(self.environment.get("seed")) is not int:
            raise InputError("environment.seed: expected an integer")
        if not self.cases:
            raise InputError("has no case")
        for (name, path), count in Counter(case.key for case in self.cases).items():
            if count > 1:
                raise InputError(f"has {count} cases {name!r} of module {path!r}")

    @property
    def partial(self) -> bool:
        """True if some modules were left out."""
        return bool(self.only) or self.depth is not None

    @property
    def buffers(self) -> Iterator[Buffer]:
        """All arrays, as often as they are named."""
        yield from (tensor.values for tensor in self.tensors)
        yield from self.state.values()
        for case in self.cases:
            yield from case.given
            for call, wide in zip(case.calls, case.float64, strict=True):
                yield from buffers_of((*call.inputs, *call.outputs))
                for one in (wide.own, wide.passed, wide.whole):
                    yield from filter(None, one.values())


def buffers_of(leaves: Sequence[Leaf]) -> list[Buffer]:
    """The arrays among some leaves."""
    return [leaf.buffer for leaf in leaves if leaf.buffer is not None]


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
