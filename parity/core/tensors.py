"""Records of weights: what the models hold, what belongs together, what was found."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from parity.core.codec import stored_as, string

Array = Shaped[np.ndarray, "..."]


Span = tuple[int, int | None] | tuple[int, int, int] | tuple[int, int, int, int, int] | None
"""From where to where along an axis, in every so many entries if there is a third number, and those
between a fourth and a fifth if there are; or one entry and no axis (no end); `None`: all of it."""


@dataclass(frozen=True)
class TensorPart:
    """A piece of a tensor: its span along each of the first axes, of those of `shape` where axes
    are joined for it.
    """

    spans: tuple[Span, ...]
    shape: tuple[int, ...] = ()

    def of(self, array: Array) -> Array:
        """The piece of an array."""
        piece: Any = array.reshape(self.shape or array.shape)
        axis = 0
        for span in self.spans:
            before = (slice(None),) * axis
            if span is None:
                axis += 1
            elif span[1] is None:
                piece = piece[(*before, span[0])]
            elif len(span) == 2:
                piece, axis = piece[(*before, slice(*span))], axis + 1
            else:
                between = span[3:] or (0, piece.shape[axis])
                turns = np.arange(*between).reshape(-1, span[2])[:, span[0] : span[1]]
                piece, axis = piece[(*before, turns.reshape(-1))], axis + 1
        found: Array = piece
        return found

    def put(self, array: Array, values: Array) -> Array:
        """The array with other values in the piece."""
        places = self.of(np.arange(array.size).reshape(array.shape))
        changed = array.reshape(-1).copy()
        changed[places.reshape(-1)] = values.reshape(-1)
        return changed.reshape(array.shape)

    @property
    def turn(self) -> int | None:
        """Index along the first axis, of one of several stacked along it."""
        first = self.spans[0]
        return first[0] if first is not None and first[1] is None else None

    @property
    def in_turns(self) -> bool:
        """True if it is in several places along an axis."""
        return any(span is not None and len(span) > 2 for span in self.spans)

    def inside(self, other: "TensorPart") -> "TensorPart":
        """The piece `other` of this piece, as a piece of the whole."""
        left = list(other.spans)
        spans: list[Span] = []
        for span in self.spans:
            inner = None if span and span[1] is None else left.pop(0) if left else None
            if span is None or inner is None:
                spans.append(inner if span is None else span)
            else:
                spans.append(_inner(span, inner))
        # axes are joined in the whole, or in an entry of its first axis
        shape = (-1, *other.shape) if other.shape and self.spans else other.shape
        return TensorPart((*spans, *left), shape or self.shape)

    def __str__(self) -> str:
        joined = f" of {self.shape}" if self.shape else ""
        return f"[{', '.join(map(_text, self.spans))}]{joined}"


def _inner(span: Any, inner: Any) -> Span:
    """A span of a span that has an end, as one of the whole."""
    first = span[0]
    if len(inner) > 2:  # in turns, in what is not
        start, end, every, *between = inner
        low, high = between or (0, span[1] - first)
        return start, end, every, first + low, first + high
    if inner[1] is None:
        return first + inner[0], None
    return first + inner[0], first + inner[1]


def _text(span: Span) -> str:
    if span is None:
        return ":"
    start, end, *every = span
    own = f"{start}" if end is None else f"{start}:{end}"
    between = f" in {every[1]}:{every[2]}" if every[1:] else ""
    return f"{own} of {every[0]}{between}" if every else own


@dataclass(frozen=True)
class Transform:
    """Change of a tensor's values into the port's: the order of its axes, `(2, 3, 1, 0)`.

    `reshaped` says that axes are merged or split then. It is of the part `of` the reference's
    tensor, and the part `at` the port's, that this holds; `None` stands for the whole.
    """

    axes: tuple[int, ...]
    reshaped: bool = False
    of: TensorPart | None = None
    at: TensorPart | None = None

    def __str__(self) -> str:
        reshaped = " reshaped" if self.reshaped else ""
        of = f" of {self.of}" if self.of else ""
        return f"{self.axes}{reshaped}{of}{f' at {self.at}' if self.at else ''}"


@dataclass(frozen=True)
class Tensor:
    """A parameter or buffer: path of its owner, own name, shape; `read` gives the values.

    `identity` is the same for one tensor that two modules share. `part` is the piece of the tensor
    that this is, `None` for all of it. A `derived` one is in no checkpoint, and needs no
    counterpart; a `frozen` one is not trained.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    read: Callable[[], Array]
    buffer: bool = False
    identity: int = 0
    part: TensorPart | None = None
    derived: bool = False
    frozen: bool = False

    @property
    def full_name(self) -> str:
        """The dotted name."""
        return f"{self.path}.{self.name}" if self.path else self.name

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def cut(self, part: TensorPart) -> "Tensor":
        """A piece of it."""
        whole = self.part.inside(part) if self.part else part

        def read() -> Array:
            return np.asarray(part.of(self.read()))

        shape = part.of(np.broadcast_to(0, self.shape)).shape
        return replace(self, shape=shape, read=read, part=whole)


@dataclass(frozen=True)
class Fused:
    """Tensors that the other side holds as one, one behind the other along `axis` of that one.

    `names` are globs of tensors of the reference and `into` names the port's leaf. Each `*` of
    `into` repeats what the first ones of `names` hold, and tensors with the same leaf make it up,
    in the order of `names`, then in the reference's:
    `Fused("blocks.*.to_*.weight", into="blocks.*.qkv.kernel")`. A tuple for `into` says that each
    tensor of the reference is split into these leaves:
    `Fused("attn.in_proj_weight", into=("attn.q.kernel", "attn.kv.kernel"), axis=0)`.
    """

    names: str | tuple[str, ...]
    into: str | tuple[str, ...]
    axis: int = -1

    @property
    def globs(self) -> tuple[str, ...]:
        """Globs of the reference's tensors."""
        return (self.names,) if isinstance(self.names, str) else tuple(self.names)


@dataclass(frozen=True)
class Stacked(Fused):
    """As `Fused`, along a new axis of the one, as layers that are scanned:
    `Stacked("layers.*.fc.weight", into="layers.fc.kernel")`.
    """

    axis: int = 0


@dataclass(frozen=True)
class Weight:
    """A tensor of the reference, the port's leaf that holds it, and what is wrong with it.

    `name` is `""` for a leaf that belongs to no tensor of the reference, `nnx_name` for a tensor
    that the port lacks. `transform` is how the reference's values become the port's, `""` if they
    do not; a report that was read back has its text. `finding` says what is wrong, `""` if nothing
    is, and `cause` is a word of the closed vocabulary for it, `""` for a leaf too many. `declared`
    is the reason why neither needs a counterpart. It is of the part `of` the reference's tensor and
    the part `at` the port's; `""` stands for the whole.
    """

    name: str
    nnx_name: str
    kind: Literal["parameter", "buffer"]
    shape: tuple[int, ...]
    nnx_shape: tuple[int, ...]
    transform: str | Transform = field(default="", metadata=stored_as(str, string))
    cause: str = ""
    finding: str = ""
    declared: str = ""
    of: str | TensorPart = field(default="", metadata=stored_as(str, string))
    at: str | TensorPart = field(default="", metadata=stored_as(str, string))

    @property
    def path(self) -> str:
        """The module that owns it, in the reference if that has it."""
        return (self.name or self.nnx_name).rpartition(".")[0]

    @property
    def text(self) -> str:
        """Its name and what is wrong with it."""
        return f"{self.name or self.nnx_name}: {self.finding}"

    @property
    def in_turns(self) -> bool:
        """True if parts of both tensors correspond, and one of them is in several places."""
        parts = [part for part in (self.of, self.at) if isinstance(part, TensorPart)]
        return len(parts) == 2 and any(part.in_turns for part in parts)

    @property
    def whole(self) -> bool:
        """True if the tensors that it is of are as large as each other."""
        return prod(self.shape) == prod(self.nnx_shape)

    @property
    def paired(self) -> bool:
        """True if each side has a tensor that can hold the other's values."""
        return bool(self.name and self.nnx_name) and self.cause != "shape"

    @property
    def wrong(self) -> bool:
        """True if it has a finding, and is not declared to have no counterpart: one that has a
        counterpart is not silenced by that.
        """
        return bool(self.finding) and (self.paired or not self.declared)
