"""Gradients of a reference: the records of a backward pass, and the protocol of what runs it."""

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


def total(name: str) -> Key:
    """The key of a tensor's gradient summed over all calls."""
    return -1, "tensor", name


@dataclass(frozen=True)
class Gradients:
    """Gradients of one run of the reference: of leaves in the port's layout, of tensors in its own.

    At an input of a call: the contribution of this call alone. At an output: the sum over all that
    use it. A missing gradient is zero. Tensors have their full name and are summed over all calls;
    `shared` maps further names of a tensor that modules share to the one used here.
    """

    of: Mapping[Key, Buffer]
    shared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wide:
    """A gradient in float64, and the root mean square of the roundings of its terms, in units of
    one rounding. That is more than a rounding of the sum where terms cancel.
    """

    value: Buffer
    spread: float


@dataclass(frozen=True)
class WideGradients:
    """Gradients in float64, every call with the recorded inputs and gradients.

    At an output: the gradient that the local code of the parent passes back to the call. Tensors
    are summed over all calls; the share of a call is given too where a tensor is not its module's
    own (see `owner`). `flows` are the calls that use an input or output in the local code around
    it, by `order`; that of the parent if it is returned.
    """

    of: Mapping[Key, Wide]
    flows: Mapping[Key, Sequence[int]] = field(default_factory=dict)


class Backward(Protocol):
    """The backward pass of the reference, from gradients at its outputs that a seed gives."""

    def record(self, recording: Recording) -> Gradients:
        """Run it once, in the reference's own type.

        Raises:
            NotMeasured: it has no gradient.
        """
        ...

    def in_float64(
        self, recording: Recording, recorded: Gradients, shaken: int = 0
    ) -> WideGradients:
        """Run it in float64, every matched call by itself: its inputs and the gradients at its
        outputs are the recorded ones.

        With a number for `shaken`, inputs of calls and parameters are changed by a few roundings,
        drawn from that number; spreads are 0 then.

        Raises:
            NotMeasured: it does not run in float64.
        """
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
