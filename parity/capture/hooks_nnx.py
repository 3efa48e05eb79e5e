"""See every call of every submodule of an NNX module, also inside `jit`.

`nnx.capture` records outputs only and skips an inherited `__call__`, so `__call__` of each class is
wrapped for the run. Inside `jit` modules are clones: each module carries a static stamp, which
clones keep, which makes `jit` trace anew, and which no later run shares. Modules of Linen inside
`nnx.bridge.ToNNX` are observed through Linen's own interceptors.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
from flax import linen, nnx

from parity.capture import taps
from parity.capture.checkpoints import no_checkpoints
from parity.capture.linen import Part, below, path_of
from parity.capture.recorder import join
from parity.core.undo import undone

STAMP = "to_nnx__parity_stamp"
"""The attribute with the stamp; any other prefix is a variable to `nnx.bridge.ToNNX`."""

_Turns = dict[str, Iterator[int]]
"""The turns of the loops of one call, by the names of taps with `*`."""

_runs = itertools.count()


class Observer:
    """Stands around each call; `root` is the path of the module whose own call is not observed."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._stack: list[tuple[str, Callable[..., Any], str, _Turns]] = []
        self._root_turns: _Turns = defaultdict(itertools.count)

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Make the call of the module at `path`, of class `kind`, and return its output."""
        raise NotImplementedError

    def tap(self, name: str, value: Any) -> Any:
        """The value with which the code of the running module goes on after a tap."""
        running, turns = self._stack[-1][2:] if self._stack else (self._root, self._root_turns)
        return self.tapped(running, join(running, name.replace("*", str(next(turns[name])))), value)

    def tapped(self, running: str, path: str, value: Any) -> Any:
        """The same of the tap at `path` in the code of the module `running`."""
        return value

    @contextmanager
    def entered(self, stamp: str, function: Callable[..., Any], path: str) -> Iterator[None]:
        """Note that the block runs `function` of the module with this stamp, which is at `path`."""
        self._stack.append((stamp, function, path, defaultdict(itertools.count)))
        try:
            yield
        finally:
            self._stack.pop()

    def inside_base_of(self, stamp: str, function: Callable[..., Any]) -> bool:
        """True if this is `super().__call__` of a call that is observed already."""
        return bool(self._stack) and self._stack[-1][0] == stamp and self._stack[-1][1] != function


@contextmanager
def observed(modules: Mapping[str, nnx.Module], observer: Observer) -> Iterator[None]:
    """Have `observer` wrap the calls of `modules` (by path), and taps, in the block."""
    run = f"{next(_runs)}:"
    parts = {path: module for path, module in modules.items() if isinstance(module, Part)}
    stamped = {path: module for path, module in modules.items() if path not in parts}
    watched = frozenset(stamped)
    for path, part in parts.items():
        stamped.setdefault(path.removesuffix(".".join(part.keys)).rstrip("."), part.owner)
    classes = [cls for cls in {type(m): None for m in stamped.values()} if can_be_called(cls)]
    own: dict[type, Any] = {}

    def undo() -> None:
        for cls, original in own.items():
            if original is not None:
                type.__setattr__(cls, "__call__", original)
            elif "__call__" in cls.__dict__:
                type.__delattr__(cls, "__call__")
        for module in stamped.values():
            if STAMP in vars(module):
                nnx.Pytree.__delattr__(module, STAMP)

    # not by `setattr`: classes of users refuse attributes
    with undone(undo):
        own |= {cls: cls.__dict__.get("__call__") for cls in classes}
        for path, module in stamped.items():
            nnx.Pytree.__setattr__(module, STAMP, run + path)
        for cls in classes:
            wrapper = _wrapper(cls.__call__, run, observer, watched)
            type.__setattr__(cls, "__call__", wrapper)
        interceptor = _interceptor(parts, observer)
        with linen.intercept_methods(interceptor), taps.observed(observer.tap), no_checkpoints():
            yield


def can_be_called(cls: type) -> bool:
    """True if the class has a `__call__`, own or inherited."""
    return any("__call__" in base.__dict__ for base in cls.__mro__)


def _wrapper(
    original: Callable[..., Any], run: str, observer: Observer, watched: Collection[str]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: nnx.Module, *args: Any, **kwargs: Any) -> Any:
        stamp = vars(self).get(STAMP, "")
        if not stamp.startswith(run) or observer.inside_base_of(stamp, original):
            return original(self, *args, **kwargs)
        path, kind = stamp.removeprefix(run), type(self).__name__
        function = functools.partial(original, self)
        with below(path):
            if path not in watched:
                return function(*args, **kwargs)
            # a profile of the run shows the call by its path
            with observer.entered(stamp, original, path), jax.profiler.TraceAnnotation(path):
                return observer.around(path, kind, function, args, kwargs)

    return call


def _interceptor(parts: Mapping[str, Part], observer: Observer) -> Callable[..., Any]:
    def intercept(function: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        path = path_of(context.module) if context.method_name == "__call__" else None
        own = context.orig_method.func
        if path is None or path not in parts or observer.inside_base_of(path, own):
            return function(*args, **kwargs)
        parts[path].remember(context.module)
        kind = type(context.module).__name__
        with observer.entered(path, own, path), jax.profiler.TraceAnnotation(path):
            return observer.around(path, kind, function, args, kwargs)

    return intercept
