"""Records of weights: what the models hold, what belongs together, what was found."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np
from jaxtyping import Shaped

from parity.core.codec import stored_as, string

Array = Shaped[np.ndarray, "..."]


@dataclass(frozen=True)
class TensorPart:
    """A piece of a tensor: from `start` to `stop` along `axis`; no `stop`: one entry, no axis."""

    axis: int
    start: int
    stop: int | None = None

    @property
    def index(self) -> tuple[int | slice, ...]:
        """The piece as NumPy indexes it."""
        at = self.start if self.stop is None else slice(self.start, self.stop)
        return (*(slice(None) for _ in range(self.axis)), at)

    def __str__(self) -> str:
        at = f"{self.start}" if self.stop is None else f"{self.start}:{self.stop}"
        return f"[{', '.join([*[':'] * self.axis, at])}]"


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
    that this is, `None` for all of it.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    read: Callable[[], Array]
    buffer: bool = False
    identity: int = 0
    part: TensorPart | None = None

    @property
    def full_name(self) -> str:
        """The dotted name."""
        return f"{self.path}.{self.name}" if self.path else self.name

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


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
    is, and `cause` is a word of the closed vocabulary for it, `""` for a leaf too many. `suggested`
    is the port's leaf that a missing tensor may be, and `declared` the reason why neither needs a
    counterpart.
    """

    name: str
    nnx_name: str
    kind: Literal["parameter", "buffer"]
    shape: tuple[int, ...]
    nnx_shape: tuple[int, ...]
    transform: str | Transform = field(default="", metadata=stored_as(str, string))
    cause: str = ""
    finding: str = ""
    suggested: str = ""
    declared: str = ""

    @property
    def path(self) -> str:
        """The module that owns it, in the reference if that has it."""
        return (self.name or self.nnx_name).rpartition(".")[0]

    @property
    def text(self) -> str:
        """Its name and what is wrong with it."""
        return f"{self.name or self.nnx_name}: {self.finding}"

    @property
    def paired(self) -> bool:
        """True if each side has a tensor that can hold the other's values."""
        return bool(self.name and self.nnx_name) and self.cause != "shape"

    @property
    def wrong(self) -> bool:
        """True if it has a finding that nobody declared."""
        return bool(self.finding) and not self.declared


def tied(tensors: Iterable[Tensor]) -> Mapping[str, str]:
    """Of each tensor that several modules share, under each of its names the first of them."""
    names: dict[int, list[str]] = defaultdict(list)
    for tensor in tensors:
        if tensor.identity:
            names[tensor.identity].append(tensor.full_name)
    return {name: own[0] for own in names.values() if len(own) > 1 for name in own}
