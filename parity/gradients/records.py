"""Records of a backward pass, and the protocol of what runs it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from parity.core.arrays import comparable
from parity.core.calls import Leaf, LeafMatch
from parity.core.store import Buffer
from parity.force.common import Recording

Side = Literal["input", "output", "tensor"]

Key = tuple[int, Side, str]
"""The `order` of a call of the reference, and one of its leaves or a tensor, by name."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of one run of the reference: of leaves in the port's layout, of tensors in its own.

    At an input of a call, and of a tensor: the contribution of this call alone. At an output: the
    sum over all that use it, or in float64 what the local code of the parent passes back. Tensors
    have their full name; `shared` maps further names of one that modules share to the one used
    here. A missing gradient is zero.
    """

    of: Mapping[Key, Buffer] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)


class Backward(Protocol):
    """The backward pass of a reference, which a check without torch does not import."""

    def record(self, recording: Recording) -> Gradients:
        """Gradients of one run, in the reference's own type (see `TorchBackward`)."""
        ...

    def in_float64(self, recording: Recording, recorded: Gradients, sample: int = 0) -> Gradients:
        """Gradients in float64 on recorded values, of a `sample` with a few roundings more."""
        ...


def owner(name: str, paths: Collection[str]) -> str:
    """The path of the module with which a tensor counts: its own, or the nearest around it that is
    among `paths`; `""` if there is none.
    """
    path = name.rpartition(".")[0]
    while path not in paths and path:
        path = path.rpartition(".")[0]
    return path


def differentiable(leaf: Leaf) -> bool:
    """True if the leaf is an array that has a gradient."""
    return leaf.buffer is not None and leaf.buffer.dtype.kind in "fcV"


def paired(leaves: Sequence[LeafMatch]) -> list[LeafMatch]:
    """Those that both sides have and that have a gradient."""
    return [leaf for leaf in leaves if comparable(leaf) and differentiable(leaf.ref)]
