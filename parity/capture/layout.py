"""The channel axis of a PyTorch array: by rank and kind, never by the error.

A JAX port is channel-last. Picking the permutation with the smallest error would hide exactly
the bugs that the harness looks for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from parity.capture.taps import KIND
from parity.core.calls import Call
from parity.core.exceptions import InputError
from parity.core.globs import path_name

CHANNEL_LAST = frozenset(
    {"Linear", "Bilinear", "LayerNorm", "RMSNorm", "Embedding", "MultiheadAttention"}
)
"""PyTorch classes whose arrays are channel-last already."""

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
"""PyTorch classes whose arrays have their channels on axis 1 at every rank from 3 on."""

OVERRIDES = ("channels_first", "as_is")

AXES = {
    5: ("item", "frame", "row", "column", "channel"),
    4: ("item", "row", "column", "channel"),
    3: ("item", "position", "channel"),
    2: ("item", "channel"),
}
"""Names of the axes of a channel-last array, by rank."""


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
    path: str, leaf: str, kinds: Sequence[str], rank: int, floating: bool, layout: Mapping[str, str]
) -> Reading:
    """Decide how to read the array `leaf` of a call of the module at `path`.

    `kinds` are the names of the module's class and its bases. `layout` maps globs of `path` or
    `path#leaf` to `"channels_first"` or `"as_is"`, the last one that matches counts.
    """
    if rank <= 2:
        return Reading(move=False, sure=True)
    for pattern, wanted in reversed(list(layout.items())):
        if fnmatchcase(path, pattern) or fnmatchcase(f"{path}#{leaf}", pattern):
            return Reading(wanted == "channels_first", sure=True)
    if not floating or CHANNEL_LAST.intersection(kinds):
        return Reading(move=False, sure=True)
    if KIND in kinds:  # scores over queries and keys have four axes too, and none is a channel's
        return Reading(move=False, sure=False)
    if CHANNEL_FIRST.intersection(kinds):
        return Reading(move=True, sure=True)
    return Reading(move=rank >= 4, sure=False)


def add_hint(error: Exception, called: Call) -> None:
    """Add to what the port raises that its inputs may have been read in the wrong layout.

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


def moved(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with axis 1 moved to last."""
    return (shape[0], *shape[2:], shape[1])


def unmoved(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the last axis moved to 1."""
    return (shape[0], shape[-1], *shape[1:-1])
