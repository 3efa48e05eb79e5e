"""The channel axis of a PyTorch array: by rank and kind, never by the error.

A JAX port is channel-last. Picking the permutation with the smallest error would hide exactly
the bugs that the harness looks for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.capture.taps import KIND
from parity.core.calls import Call, Leaf
from parity.core.exceptions import InputError
from parity.core.globs import most_specific, path_name
from parity.core.store import digest
from parity.core.tree import mapped

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

CHANNEL_LAST = frozenset(
    {"Linear", "Bilinear", "LayerNorm", "RMSNorm", "Embedding", "MultiheadAttention"}
)
"""Classes of PyTorch whose arrays are channel-last already."""

_RANKS = (1, 2, 3)
_NORMS = ("BatchNorm", "InstanceNorm")

CHANNEL_FIRST = frozenset(
    {
        *(f"{name}{rank}d" for name in ("Conv", "ConvTranspose", *_NORMS) for rank in _RANKS),
        *(f"{name}Pool{rank}d" for name in ("Max", "Avg") for rank in _RANKS),
        *(f"Adaptive{name}Pool{rank}d" for name in ("Max", "Avg") for rank in _RANKS),
        *(f"{name}Pad{rank}d" for name in ("Reflection", "Replication") for rank in _RANKS),
        *("GroupNorm", "PixelShuffle", "PixelUnshuffle", "Upsample"),
    }
)
"""Classes of PyTorch whose arrays have their channels on axis 1 at every rank from 3 on."""

OVERRIDES = ("channels_first", "as_is")

AXES = {
    5: ("item", "frame", "row", "column", "channel"),
    4: ("item", "row", "column", "channel"),
    3: ("item", "position", "channel"),
    2: ("item", "channel"),
}
"""Names of the axes of a channel-last array, by rank."""


@dataclass(frozen=True)
class Kind:
    """What a module says of its arrays: the classes of PyTorch that it is of, if `own` with their
    own `forward`, and the `sizes` of its vectors, which have a number for each channel.
    """

    names: frozenset[str]
    own: bool = True
    sizes: frozenset[int] = frozenset()


TAP = Kind(frozenset({KIND}))


@dataclass(frozen=True)
class Reading:
    """A decision to `move` axis 1 to last or not; `sure` if kind or declaration says so."""

    move: bool
    sure: bool


def check(layout: Mapping[str, str]) -> None:
    """Refuse an override that is not one of `OVERRIDES`."""
    for pattern, wanted in layout.items():
        if wanted not in OVERRIDES:
            raise InputError(
                f"layout[{pattern!r}] is {wanted!r}; expected one of {', '.join(OVERRIDES)}"
            )


def reading(
    path: str,
    leaf: str,
    kind: Kind,
    shape: Sequence[int],
    floating: bool,
    layout: Mapping[str, str],
) -> Reading:
    """Decide how to read the array `leaf` of a call of the module at `path`.

    `layout` maps globs of `path` or `path#leaf` to `"channels_first"` or `"as_is"`, the most
    specific one that matches counts.
    """
    if len(shape) <= 2:
        return Reading(move=False, sure=True)
    glob = most_specific(layout, (path, f"{path}#{leaf}"))
    if glob is not None:
        return Reading(layout[glob] == "channels_first", sure=True)
    if not floating:
        return Reading(move=False, sure=True)
    if kind == TAP:  # scores over queries and keys have four axes too, and none is a channel's
        return Reading(move=False, sure=False)
    second, last = shape[1] in kind.sizes, shape[-1] in kind.sizes
    if not kind.own and second != last:
        return Reading(move=second, sure=True)
    if CHANNEL_LAST & kind.names:
        return Reading(move=False, sure=kind.own)
    if CHANNEL_FIRST & kind.names:
        return Reading(move=True, sure=kind.own)
    return Reading(move=len(shape) >= 4, sure=False)


def as_read_inside(given: Given, calls: Sequence[Call]) -> Given:
    """Arguments for the port, with axis 1 where a layer inside reads it.

    Of Whisper's features, (item, mel, time), only the first convolution tells; of what a linear
    layer is given, that its axes are the reference's. `calls` are all of the reference's, the
    outermost last.
    """
    doubt = {x.buffer.digest: x.moved for x in calls[-1].inputs if x.buffer and not x.sure}
    leaves = [(leaf.buffer, leaf.moved) for call in calls for leaf in call.inputs if leaf.sure]
    told = {(buffer.digest, moved) for buffer, moved in leaves if buffer is not None}

    def turned(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.ndim < 3:
            return array
        moved = doubt.get(own := digest(array))
        if moved is None or (own, moved) in told:
            return array
        other = _turned(array, moved)
        return other if (digest(other), not moved) in told else array

    return _mapped(turned, given)


def _turned(array: Any, moved: bool) -> Any:
    """The array with axis 1 last, or where it was if it is `moved`."""
    return np.ascontiguousarray(np.moveaxis(array, *((-1, 1) if moved else (1, -1))))


def _mapped(change: Callable[[Any], Any], given: Given) -> Given:
    args, kwargs = given
    args = tuple(mapped(change, value) for value in args)
    return args, {name: mapped(change, value) for name, value in kwargs.items()}


def as_recorded(given: Given, called: Call, *, equal: bool = False) -> Given | None:
    """The arguments with the axes that the reference was given, or only those of which neither
    kind nor shape tells, as their sizes are `equal`; `None` if these are the same.
    """
    leaves = [leaf for leaf in called.inputs if leaf.moved and not (equal and known(leaf))]
    moved = {leaf.buffer.digest for leaf in leaves if leaf.buffer}

    def turned(array: Any) -> Any:
        own = isinstance(array, np.ndarray) and digest(array) in moved
        return _turned(array, moved=True) if own else array

    return _mapped(turned, given) if moved else None


def known(leaf: Leaf) -> bool:
    """True if kind or shape tells whether axis 1 of the reference's array is to be last."""
    return leaf.sure or leaf.buffer is None or len({*leaf.buffer.shape[1:]}) > 1


def add_hint(error: Exception, called: Call) -> None:
    """Add to what the port raised that its inputs may have been read in the wrong layout.

    `called` is the reference's call, with what its arguments are read as.
    """
    unsure = [leaf for leaf in called.inputs if not (leaf.moved or leaf.sure)]
    kept = [f"{leaf.name!r} {leaf.buffer.shape}" for leaf in unsure if leaf.buffer is not None]
    if kept:
        error.add_note(
            f"parity: the port was given {', '.join(kept)} with the axes of the reference; if"
            " axis 1 is the channel, say so with"
            f" layout={{{path_name(called.path)!r}: 'channels_first'}}"
        )
    turned = [f"{x.name!r} {x.buffer.shape}" for x in called.inputs if x.moved and x.buffer]
    if turned:
        error.add_note(
            f"parity: the port was given {', '.join(turned)}, PyTorch's axis 1 last; if it takes"
            " them otherwise, hand it its own arrays with nnx_args="
        )


def channel_last(rank: int) -> tuple[int, ...]:
    """The order of axes that moves axis 1 to the end."""
    return (0, *range(2, rank), 1)


def channel_second(rank: int) -> tuple[int, ...]:
    """The order of axes that moves the last to 1."""
    return (0, rank - 1, *range(1, rank - 1))
