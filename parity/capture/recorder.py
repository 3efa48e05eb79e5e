"""The order and nesting of calls, whichever framework makes them."""

import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from parity.capture.taps import KIND
from parity.core.calls import Call, Leaf
from parity.core.exceptions import InputError
from parity.core.tree import Skeleton


@dataclass(frozen=True)
class Subtree:
    """The modules to record: that at `prefix` in its model, and those `inside` it, by path.

    All of the latter are, unless they are given.
    """

    prefix: str = ""
    inside: Collection[str] | None = None

    def includes(self, path: str) -> bool:
        """True if that module below the prefix is recorded."""
        return self.inside is None or path in self.inside

    def without_taps(self, paths: Collection[str]) -> frozenset[str]:
        """The recorded ones of all modules that have others below them which are not.

        It is not known in whose code a tap is: these have none then.
        """
        left_out = [path for path in paths if path != self.prefix and not self.includes(path)]
        parts = [path.split(".") for path in left_out]
        return frozenset(".".join(keys[:i]) for keys in parts for i in range(len(keys)))


WHOLE = Subtree()


class Recorder:
    """Collects calls from events in the order in which they happen; calls nest."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._open: list[Call] = []
        self._begun = 0
        self._numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def begin(self, path: str, inputs: tuple[Leaf, ...], arguments: Skeleton | None) -> None:
        """A call of the module at `path` starts; `arguments` rebuilds its arguments by name."""
        parent = self._open[-1].order if self._open else -1
        call = Call(path, "", "", 0, self._begun, parent, inputs, (), arguments=arguments)
        self._open.append(call)
        self._begun += 1

    def end(self, kind: str, method: str, outputs: tuple[Leaf, ...], **more: Any) -> None:
        """The innermost open call returns; `more` are further fields of its `Call`."""
        call = self._open.pop()
        number = next(self._numbers[call.path])
        call = replace(call, kind=kind, method=method, number=number, outputs=outputs, **more)
        self._calls.append(call)

    def abort(self) -> None:
        """The innermost open call raises."""
        self._calls.append(replace(self._open.pop(), method="__call__", number=-1, raised=True))

    def point(self, path: str, outputs: tuple[Leaf, ...], returned: Skeleton | None = None) -> None:
        """A tap: a call without inputs, which returns at once."""
        self.begin(path, (), None)
        self.end(KIND, "", outputs, returned=returned)

    @property
    def running(self) -> str | None:
        """The path of the innermost open call."""
        return self._open[-1].path if self._open else None

    def finish(self) -> tuple[Call, ...]:
        """All calls by completion, `order` and `parent` counted so.

        Raises:
            InputError: a tap has the path of a module that was called.
        """
        modules = {call.path for call in self._calls if not call.tapped}
        for call in self._calls:
            if call.tapped and call.path in modules:
                why = "has the path of a module that is called too; name it otherwise"
                raise InputError(f"tap {call.path!r} {why}")
        place = {call.order: index for index, call in enumerate(self._calls)} | {-1: -1}
        return tuple(
            replace(call, order=index, parent=place[call.parent])
            for index, call in enumerate(self._calls)
        )


class Placed(str):
    """The name of an argument that was given by position."""

    __slots__ = ()


def bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by parameter name, in the order of the signature; by position if it has none."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{Placed(i): arg for i, arg in enumerate(args)}, **kwargs}
    return {
        name if name in kwargs or i >= len(args) else Placed(name): value
        for i, (name, value) in enumerate(bound.arguments.items())
    }


def unbind(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments that `bind` would name so.

    What was given by keyword stays so: decorators look at what they are given by.
    """
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = {}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    several = any(
        one.kind is one.VAR_POSITIONAL and arguments.get(name) for name, one in parameters.items()
    )
    for name, value in arguments.items():
        kind = parameters[name].kind if name in parameters else None
        if kind is inspect.Parameter.VAR_POSITIONAL:
            args += value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            kwargs |= value
        elif kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[name] = value
        elif several or isinstance(name, Placed) or kind is inspect.Parameter.POSITIONAL_ONLY:
            args.append(value)
        else:
            kwargs[str(name)] = value
    return tuple(args), kwargs


def join(prefix: str, path: str) -> str:
    """A dotted path from two, either of which may be empty."""
    return f"{prefix}.{path}" if prefix and path else prefix or path
