"""What code can change in place, from some objects on: it is kept, and put back after a run.

Objects of the user's own classes are looked into, with what functions close over; those of
libraries are not, but for modules.
"""

import copy
import functools
import io
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parity.core.exceptions import InputError

LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "jax", "jaxlib", "flax", "numpy"})
"""Packages whose objects are not looked into, as `parity`'s own are not."""

Attributes = tuple[dict[str, Any], Collection[str]]
"""The attributes of an object, and the names of those that are not looked into."""


class Stream(NamedTuple):
    """How the state of a stream of random numbers is read and set, and how the stream moves."""

    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    draw: Callable[[Any], Any]


STREAMS: dict[type, Stream] = {
    random.Random: Stream(
        lambda one: one.getstate(),
        lambda one, state: one.setstate(state),
        lambda one: one.random(),
    ),
    np.random.Generator: Stream(
        lambda one: copy.deepcopy(one.bit_generator.state),
        lambda one, state: setattr(one.bit_generator, "state", state),
        lambda one: one.random(3),
    ),
    np.random.RandomState: Stream(
        lambda one: one.get_state(legacy=False),
        lambda one, state: one.set_state(state),
        lambda one: one.random_sample(3),
    ),
}

GLOBAL = (random.random.__self__, np.random.random_sample.__self__)  # type: ignore[attr-defined]
"""The streams that `random` and `numpy.random` draw from."""


class Kept:
    """All that can be reached from some objects, as it was.

    `opened` gives the attributes of modules, and of others `None`. `found` are all values that are
    no plain ones.

    Raises:
        InputError: what can be reached cannot be put back.
    """

    def __init__(
        self, roots: Iterable[Any], opened: Callable[[Any], Attributes | None] = lambda one: None
    ) -> None:
        self._opened = opened
        self.found: dict[int, Any] = {}
        self._held: dict[int, tuple[Any, Any]] = {}
        self._streams: list[tuple[Any, Stream, Any]] = []
        rest = [*roots]
        while rest:
            value = rest.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self.found:
                self.found[id(value)] = value
                rest += self._look(value)

    def _look(self, value: Any) -> Iterable[Any]:
        """Keep one value, and return what it holds."""
        for kind, stream in STREAMS.items():
            if isinstance(value, kind):
                self._streams.append((value, stream, stream.get(value)))
        if isinstance(value, np.ndarray) and value.flags.writeable:
            self._held[id(value)] = value, value.copy()
        own, apart = self._opened(value) or (attributes(value), ())
        held = [] if own is None else [x for n, x in own.items() if n not in apart]
        for holder in (value, own):
            if type(holder) in _COPIES or isinstance(holder, (dict, list)):
                self._held[id(holder)] = holder, _copied(holder)
        kind = type(value)
        if own is not None and id(kind) not in self.found:
            self.found[id(kind)] = kind
            held += _of_class(kind)
        return (*_inside(value), *held)

    def restore(self) -> None:
        """Put back what was changed; what was not is not written to."""
        for holder, kept in self._held.values():
            if not _same(holder, kept):
                _put_back(holder, _copied(kept))
        for one, stream, state in self._streams:
            stream.put(one, state)

    @property
    def changed(self) -> bool:
        """True if a container, an object or an array of NumPy is no longer as it was."""
        return any(not _same(holder, kept) for holder, kept in self._held.values())

    def move(self) -> None:
        """Move all streams of random numbers on."""
        for one, stream, _ in self._streams:
            stream.draw(one)


def held_by(
    value: Any, opened: Callable[[Any], Attributes | None] = lambda one: None
) -> Kept | None:
    """What a call may change of an object that it is given, as of a cache; `None` of others."""
    if opened(value) is not None or attributes(value) is None:
        return None
    try:
        return Kept((value,), opened)
    except InputError:  # it holds what one run uses up
        return None


def copy_of(value: Any, kept: Kept | None, instead: Callable[[Any], Any]) -> Any:
    """A copy of an object with all that it holds, and `instead(x)` for what that is not `None` for;
    itself if nothing is `kept`, or if it cannot be copied.
    """
    if kept is None:
        return value
    others = ((at, instead(one)) for at, one in kept.found.items())
    try:
        return copy.deepcopy(value, {at: one for at, one in others if one is not None})
    except Exception:  # such as a lock
        return value


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, types.ModuleType, slice)

_COPIES: Mapping[type, Callable[[Any], Any]] = {
    set: set,
    deque: deque,
    bytearray: bytearray,
    types.CellType: lambda cell: [*_inside(cell)],
}


def _copied(holder: Any) -> Any:
    """The content of a holder; iterators in it are copied, as a run may use them up."""
    if isinstance(holder, dict):
        return {key: _again(value) for key, value in holder.items()}
    if isinstance(holder, list):
        return [*map(_again, holder)]
    return holder.copy() if isinstance(holder, np.ndarray) else _COPIES[type(holder)](holder)


def _again(value: Any) -> Any:
    if not isinstance(value, Iterator) or isinstance(value, io.IOBase):
        return value
    try:
        return copy.copy(value)
    except TypeError as error:
        raise InputError(
            f"a model or an argument holds a {type(value).__name__}, which one run uses up:"
            " expected a list, or what makes it anew"
        ) from error


def _same(holder: Any, kept: Any) -> bool:
    """True if a holder has what it had, the very same objects."""
    if isinstance(holder, np.ndarray):
        return bool(holder.tobytes() == kept.tobytes())
    if isinstance(holder, dict):
        return [(k, id(v)) for k, v in holder.items()] == [(k, id(v)) for k, v in kept.items()]
    if isinstance(holder, (set, bytearray)):
        return bool(holder == kept)
    held = _inside(holder) if isinstance(holder, types.CellType) else holder
    return [*map(id, held)] == [*map(id, kept)]


def _put_back(holder: Any, kept: Any) -> None:
    match holder:
        case dict():  # a subclass may refuse to be written to
            base: Any = OrderedDict if isinstance(holder, OrderedDict) else dict
            base.clear(holder)
            base.update(holder, kept)
        case list():
            list.__setitem__(holder, slice(None), kept)
        case np.ndarray():
            holder[...] = kept
        case types.CellType():
            if kept:
                holder.cell_contents = kept[0]
            else:
                del holder.cell_contents
        case _:
            holder.clear()
            (holder.update if isinstance(holder, set) else holder.extend)(kept)


def attributes(value: Any) -> dict[str, Any] | None:
    """Those of an object of a class that is no library's."""
    if isinstance(value, (types.FunctionType, types.MethodType)) or _of_library(type(value)):
        return None
    return getattr(value, "__dict__", None)


def _of_library(one: Any) -> bool:
    package = str(getattr(one, "__module__", "")).partition(".")[0]
    return package in LIBRARIES or package == "parity"


def _of_class(kind: type) -> Sequence[Any]:
    """Functions of a class, and what it holds for all its objects."""
    own = [one for base in kind.__mro__ if not _of_library(base) for one in vars(base).values()]
    found = [one.__func__ if isinstance(one, (staticmethod, classmethod)) else one for one in own]
    return [x for x in found if isinstance(x, (types.FunctionType, dict, list, *_COPIES))]


def _inside(value: Any) -> Iterable[Any]:
    """What a value holds beside its attributes."""
    match value:
        case dict():
            return [*dict.values(value)]
        case list() | tuple() | set() | frozenset() | deque():
            return [*value]
        case functools.partial():
            return (value.func, value.args, value.keywords)
        case types.MethodType():
            return (value.__self__, value.__func__)
        case types.FunctionType() if not _of_library(value):
            named = (value.__globals__.get(name) for name in value.__code__.co_names)
            caches = [one for one in named if isinstance(one, (dict, list, *_COPIES))]
            closed = (*(value.__closure__ or ()), *(value.__defaults__ or ()))
            return (*closed, value.__kwdefaults__, *caches)
        case types.CellType():
            try:
                return (value.cell_contents,)
            except ValueError:  # not set yet
                return ()
    return ()
