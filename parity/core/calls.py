"""Records of a recorded run: calls with their leaves, modules, and which correspond."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parity.core.codec import stored_as
from parity.core.plain import decode_value, encode_value
from parity.core.problems import Problem, ProblemKind, Side
from parity.core.store import Buffer
from parity.core.tree import Skeleton

UNSTORED = stored_as(lambda value: None, lambda value: None)
"""A field that a golden trace leaves out: it holds objects of the process."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of a call's arguments or outputs.

    `buffer` is set for arrays, `value` for everything else. `moved` says that the channel axis
    of a PyTorch array was moved from 1 to last when it was recorded, `sure` that its kind or a
    declaration decided so.
    """

    name: str
    buffer: Buffer | None = None
    value: Any = field(default=None, metadata=stored_as(encode_value, decode_value))
    moved: bool = False
    sure: bool = True

    @property
    def empty(self) -> bool:
        """True for an array without entries."""
        return self.buffer is not None and 0 in self.buffer.shape


@dataclass(frozen=True)
class Call:
    """One call of one module.

    `number` counts the calls of this module, `order` the calls of the run by completion,
    `parent` is the `order` of the enclosing call (-1 for the root). `traced` says that the port
    ran it under a JAX transformation. `arguments` rebuilds the arguments, `returned` what the
    reference returned. `in_place` says that the reference wrote to an argument, `random` names the
    module whose code makes it return, or pass to calls inside it, something else each time.
    `raised` says that the call ended in an exception, which the code around it caught.
    """

    path: str
    kind: str
    method: str
    number: int
    order: int
    parent: int
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    traced: bool = False
    arguments: Skeleton | None = field(default=None, metadata=UNSTORED)
    returned: Skeleton | None = field(default=None, metadata=UNSTORED)
    in_place: bool = False
    random: str = ""
    raised: bool = False

    @property
    def tapped(self) -> bool:
        """True for a tap, which is no call: nothing was called, and it has no inputs."""
        return not self.method


@dataclass(frozen=True)
class ModuleInfo:
    """A module of either side: its class, whether it can run, its own tensors' sizes by name, and
    the numbers that it states, as its epsilon.
    """

    path: str
    kind: str
    container: bool
    parameters: Mapping[str, int]
    buffers: Mapping[str, int]
    constants: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """Everything recorded in one run of one side, calls in the order of completion.

    `hidden` are the modules that the port calls under `jax.vmap`, or differentiates, where calls
    cannot be recorded.
    `linen` are the port's modules of Linen by path, as they can be called again. `untapped` are the
    paths of the port's taps under any transformation, compilation among them.
    """

    calls: tuple[Call, ...]
    modules: Mapping[str, ModuleInfo]
    hidden: frozenset[str] = frozenset()
    linen: Mapping[str, Any] = field(default_factory=dict)
    untapped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reading:
    """How the reference's recorded array becomes the port's: its axes in this order, then split or
    joined into this shape.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LeafMatch:
    """A leaf of the reference and the port's leaf that corresponds to it.

    `reading` is how the reference's array is to be read, `None` for as it was recorded. `problem`
    is why the two cannot be compared (`None` if they can), `declared` why they need not be.
    """

    ref: Leaf
    port: Leaf | None
    reading: Reading | None = None
    problem: Problem | None = None
    declared: str = ""

    @property
    def only_on(self) -> Side:
        """The side that alone has this leaf, `""` if both do."""
        kind = self.problem and self.problem.kind
        if kind is ProblemKind.PORT_LACKS:
            return "reference"
        return "port" if kind is ProblemKind.REF_LACKS else ""


@dataclass(frozen=True)
class Match:
    """A reference call, the port's call that corresponds to it, and their leaves."""

    ref: Call
    port: Call
    inputs: tuple[LeafMatch, ...]
    outputs: tuple[LeafMatch, ...]
    parent: int
    """The `order` of the nearest enclosing reference call that is matched, -1 for the root."""
    turn: int | None = None
    """Which of the port's layers it is, where that holds them stacked."""
    norm: bool = False
    """True if its own code holds a norm of the reference that the port does not call."""

    @property
    def family(self) -> str:
        """The class by whose limits on R it is judged."""
        return "Norm" if self.norm else self.ref.kind


def above(order: int, parents: Mapping[int, int]) -> Iterator[int]:
    """A call and those around it, the innermost first; `parents` has -1 for the root's."""
    while order != -1:
        yield order
        order = parents.get(order, -1)


def without(matches: Sequence[Match], orders: Collection[int]) -> tuple[Match, ...]:
    """The other matches, each in the nearest around it that is left."""
    parents = {match.ref.order: match.parent for match in matches}

    def left(order: int) -> int:
        return next((one for one in above(order, parents) if one not in orders), -1)

    return tuple(replace(m, parent=left(m.parent)) for m in matches if m.ref.order not in orders)
