"""What the backward pass of a reference gives: a gradient at every boundary of every call."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Shaped

from parity.core.arrays import comparable
from parity.core.calls import Call, Leaf, LeafMatch, Match
from parity.core.store import Buffer, Store

Array = Shaped[np.ndarray, "..."]

Side = Literal["input", "output"]

Key = tuple[int, Side, str]
"""The `order` of a call of the reference, and which of its leaves, by the reference's name."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of one run of the reference, in the port's layout, those of tensors in its own.

    At an input of a call: what this call alone contributes to it. At an output: what arrives there,
    from all that use it. What is missing is zero: no gradient gets there. `tensors` are by full
    name, summed over all calls; `shared` maps further names of a tensor that modules share to that
    under which it is here.
    """

    leaves: Mapping[Key, Buffer]
    tensors: Mapping[str, Buffer]
    shared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wide:
    """A gradient in float64, and the root mean square of what roundings of what it is summed from
    come to, in units of one rounding.

    That is more than a rounding of the sum where its terms cancel.
    """

    value: Buffer
    spread: float


@dataclass(frozen=True)
class WideGradients:
    """As `Gradients`, in float64: every call with the recorded inputs and gradients.

    At an output it is what the call around it hands back, with its own code alone. `users` are the
    shares of calls, by `order`, in tensors that are not their module's own (see `owner`). `flows`
    are the calls that what comes in goes on to, by the own code of the call around, or that call
    itself if it is returned.
    """

    leaves: Mapping[Key, Wide]
    tensors: Mapping[str, Wide]
    users: Mapping[tuple[int, str], Wide] = field(default_factory=dict)
    flows: Mapping[Key, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """What a run in float64 is to tell.

    With a number for `shaken`, inputs of calls and parameters are changed by so many roundings, in
    a way that it gives: of interest are the gradients alone, and spreads are 0. `inside` counts the
    roundings between the operations of a call too, where a gradient cancels there.
    """

    shaken: int = 0
    by: float = 0.0
    inside: bool = False


PLAIN = Asked()


class Backward(Protocol):
    """The backward pass of the reference, from gradients at its outputs that a seed gives."""

    def record(self, matches: Sequence[Match], calls: Sequence[Call], store: Store) -> Gradients:
        """Run it once, in the reference's own type.

        Raises:
            NotMeasured: it has no gradient.
        """
        ...

    def own(
        self,
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
        recorded: Gradients,
        asked: Asked = PLAIN,
    ) -> WideGradients:
        """Run it in float64, every call by itself: what comes in, forward and backward, is what
        was recorded.

        Raises:
            NotMeasured: it does not run in float64.
        """
        ...

    def whole(
        self,
        match: Match,
        calls: Sequence[Call],
        store: Store,
        recorded: Gradients,
        asked: Asked = PLAIN,
    ) -> WideGradients:
        """One call with all that is inside it, in float64.

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
    """Whether the leaf is an array that has a gradient."""
    return leaf.buffer is not None and leaf.buffer.dtype.kind in "fcV"


def paired(leaves: Sequence[LeafMatch]) -> list[LeafMatch]:
    """Those that both sides have and that have a gradient."""
    return [leaf for leaf in leaves if comparable(leaf) and differentiable(leaf.ref)]
