"""The reference in float64: every call gets the recorded float32 inputs and hands back outputs.

Its modules are widened one by one, each for the time of its call: there is never a float64 copy of
the whole model.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from parity.capture import taps
from parity.capture.recorder import bind, join, unbind
from parity.capture.restore_torch import kept_reference
from parity.capture.torch import Method, invoke, target, unhook
from parity.core.arrays import comparable
from parity.core.calls import Call, Leaf, Match
from parity.core.exceptions import first_line
from parity.core.measurements import NOT_IN_FLOAT64
from parity.core.store import Store
from parity.core.tree import Flat, flatten, rebuild
from parity.force.common import by_turn
from parity.force.module64 import widen

Tensors = Mapping[str, torch.Tensor]
Listener = Callable[[Match, Tensors, Tensors], None]
"""Hears of each call: what its parent handed over and what it returned by itself, in float64."""


class Mode(TorchFunctionMode):
    """Sees operations while it is `active`: those of the harness itself are left out."""

    active = True


def force_reference(
    root: torch.nn.Module,
    method: Method,
    matches: Sequence[Match],
    calls: Sequence[Call],
    store: Store,
    listener: Listener,
    wanted: Collection[int],
    prefix: str = "",
    mode: Mode | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> str:
    """Run `root` so and tell `listener` of every call of `matches`; returns why it failed, or "".

    Calls whose `order` is not `wanted` return what they returned before, and are not computed:
    `listener` hears what they were handed and of no outputs.

    `calls` are all that the reference made when it was recorded. A module's weights are float64
    while it runs, and those of modules inside it that never run by themselves. If that is not
    enough, because some code reads the weights of a module that also runs, all are. `mode` sees the
    operations of the root's own code; `change` is applied to the root's arguments by name.
    """
    problem = ""
    for everything in (False, True):
        run = _Run(root, matches, calls, store, listener, prefix, wanted, everything)
        try:
            with torch.no_grad(), kept_reference(root):
                run(method, mode, change)
            return ""
        except Exception as error:  # code written for float32 fails in ways of its own
            problem = f"{NOT_IN_FLOAT64}: {first_line(error)}"
    return problem


class _Run:
    def __init__(
        self,
        root: torch.nn.Module,
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
        listener: Listener,
        prefix: str,
        wanted: Collection[int],
        everything: bool,
    ) -> None:
        self._root, self._store, self._listener = root, store, listener
        self._paths = {module: join(prefix, path) for path, module in root.named_modules()}
        by_order = {match.ref.order: match for match in matches}
        turns = by_turn(calls).items()
        self._matches = {key: by_order[call.order] for key, call in turns if call.order in by_order}
        self._root_match = matches[-1]
        called = {call.path for call in calls}
        self._idle = {m for m, path in self._paths.items() if path not in called}
        self._everything = everything
        self._wanted = _with_all_around(wanted, calls)
        self._calls = calls
        self._turns: Counter[str] = Counter()
        self._running = [self._paths[root]]

    def __call__(
        self,
        method: Method,
        mode: Mode | None,
        change: Callable[[dict[str, Any]], dict[str, Any]] | None,
    ) -> None:
        self._mode = mode
        widened = self._paths if self._everything else self._with_idle(self._root)
        inner = [module for module in self._paths if module is not self._root]
        with widened_modules(widened), replaced_forwards(inner, self._call):
            match = self._root_match
            assert match.ref.arguments is not None
            buffers = [(leaf.buffer, leaf.moved) for leaf in match.ref.inputs if leaf.buffer]
            once = {key: widen(self._store.get(key[0]), key[1]) for key in buffers}
            wide = [once[key] for key in buffers]
            function = target(self._root, method)
            given: dict[str, Any] = rebuild(match.ref.arguments, wide)
            args, kwargs = unbind(function, change(given) if change else given)
            with taps.heard(self._tap), mode or nullcontext():
                returned = invoke(self._root, method, args, kwargs)
            output = flatten(returned)
            self._listener(match, {}, _tensors(output))

    def _call(
        self, module: torch.nn.Module, forward: Callable[..., Any], called: bool, args: Any,
        kwargs: Any,
    ) -> Any:  # fmt: skip
        """Stands in for the `forward` of one module."""
        path = self._paths[module]
        match = self._next(path) if called else None
        widened = widened_modules([] if self._everything else self._with_idle(module))
        with self._unseen():
            widened.__enter__()
        with ExitStack() as stack:
            stack.push(widened)
            if called:
                self._running.append(path)
                stack.callback(self._running.pop)
            if match is None:
                return forward(*args, **kwargs)
            with self._unseen():
                return self._replaced_call(match, forward, args, kwargs)

    def _tap(self, name: str, value: Any) -> Any:
        """Stands in for a tap: it hands back what it recorded."""
        match = self._next(join(self._running[-1], name))
        if match is None:
            return value
        with self._unseen():
            given = flatten(value)
            self._listener(match, {}, _tensors(given))
            leaves = {leaf.ref.name: leaf.ref for leaf in match.outputs if comparable(leaf)}
            return rebuild(given.skeleton, self._replaced(given, leaves))

    def _next(self, path: str) -> Match | None:
        """The match of the call of `path` that begins now."""
        turn = self._turns[path]
        self._turns[path] += 1
        return self._matches.get((path, turn))

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """What happens in the block is not the work of the root's own code."""
        if self._mode is None:
            yield
            return
        before, self._mode.active = self._mode.active, False
        try:
            yield
        finally:
            self._mode.active = before

    def _replaced_call(
        self, match: Match, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        given = flatten(bind(forward, args, kwargs))
        if match.ref.order not in self._wanted:
            self._listener(match, _tensors(given), {})
            self._turns.update(self._skipped(match.ref.order))
            return self._recorded(match.ref)
        leaves = {leaf.ref.name: leaf.ref for leaf in match.inputs if comparable(leaf)}
        arrays = self._replaced(given, leaves)
        both = zip([own for _, own in given.arrays], arrays, strict=True)
        pairs = [(own, new, new._version) for own, new in both if new is not own]
        args, kwargs = unbind(forward, rebuild(given.skeleton, arrays))
        output = flatten(forward(*args, **kwargs))
        self._listener(match, _tensors(given), _tensors(output))
        leaves = {leaf.ref.name: leaf.ref for leaf in match.outputs if comparable(leaf)}
        arrays = self._replaced(output, leaves)
        for own, new, version in pairs:
            if new._version != version:  # written to in place: the parent sees that in its own
                returned = zip([out for _, out in output.arrays], arrays, strict=True)
                own.copy_(next((array for out, array in returned if out is new), new))
        return rebuild(output.skeleton, arrays)

    def _skipped(self, order: int) -> list[str]:
        """The paths of all calls inside one that is not made: these have had their turn."""
        paths = []
        waiting = [order]
        while waiting:
            inner = self._inside[waiting.pop()]
            paths += [call.path for call in inner]
            waiting += [call.order for call in inner]
        return paths

    @functools.cached_property
    def _inside(self) -> Mapping[int, Sequence[Call]]:
        found: dict[int, list[Call]] = defaultdict(list)
        for call in self._calls:
            found[call.parent].append(call)
        return found

    def _recorded(self, call: Call) -> Any:
        """What a call returned when it was recorded, widened."""
        assert call.returned is not None
        buffers = [(leaf.buffer, leaf.moved) for leaf in call.outputs if leaf.buffer]
        return rebuild(call.returned, [widen(self._store.get(b), moved) for b, moved in buffers])

    def _replaced(self, flat: Flat, leaves: Mapping[str, Leaf]) -> list[Any]:
        arrays = []
        known: dict[int, Any] = {}  # one tensor given twice stays one: attention looks at that
        for name, own in flat.arrays:
            leaf = leaves.get(name)
            if id(own) not in known and leaf is not None and leaf.buffer is not None:
                value = widen(self._store.get(leaf.buffer), leaf.moved)
                known[id(own)] = value if value.shape == own.shape else own
            arrays.append(known.get(id(own), own))
        return arrays

    def _with_idle(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """The module, and those inside it whose weights only it can use."""
        return [module, *(m for m in module.modules() if m is not module and m in self._idle)]


def _with_all_around(wanted: Collection[int], calls: Sequence[Call]) -> frozenset[int]:
    """Those calls, the calls around them, and those that write to what they are given."""
    parents = {call.order: call.parent for call in calls}
    found: set[int] = set()
    for order in (*wanted, *(call.order for call in calls if call.in_place)):
        while order != -1 and order not in found:
            found.add(order)
            order = parents[order]
    return frozenset(found)


Forward = Callable[..., Any]


@contextmanager
def replaced_forwards(
    modules: Collection[torch.nn.Module],
    call: Callable[[torch.nn.Module, Forward, bool, Any, Any], Any],
) -> Iterator[None]:
    """In the block `call` stands in for the `forward` of each module.

    It is given the module, its `forward`, whether the module itself was called, and the arguments:
    of `module.forward(x)` hooks do not hear, so that it was not recorded as a call.
    """
    stand_in = _StandIn(call)
    own = {module: vars(module).get("forward") for module in modules}

    def undo() -> None:
        for module, forward in own.items():
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward
            unhook(module, stand_in)

    try:
        try:
            for module in modules:
                module.register_forward_pre_hook(stand_in.before)
                module.forward = functools.partial(stand_in.forward, module, module.forward)
            yield
        finally:
            undo()
    finally:
        undo()  # once more: an interrupt may have broken it off


class _StandIn:
    def __init__(self, call: Callable[[torch.nn.Module, Forward, bool, Any, Any], Any]) -> None:
        self._call = call
        self._called: set[torch.nn.Module] = set()

    def before(self, module: torch.nn.Module, _: Any) -> None:
        self._called.add(module)

    def forward(self, module: torch.nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        called = module in self._called
        self._called.discard(module)
        return self._call(module, forward, called, args, kwargs)


@dataclass(frozen=True)
class Widened:
    """A tensor and the float64 copy that stands in its place, not written to since `version`."""

    group: dict[str, Any]
    name: str
    own: torch.Tensor
    wide: torch.Tensor
    version: int


@contextmanager
def widened_modules(modules: Iterable[torch.nn.Module]) -> Iterator[list[Widened]]:
    """In the block float64 copies stand in place of the modules' own tensors."""
    undo: list[Widened] = []
    try:
        try:
            _widen(modules, undo)
            yield undo
        finally:
            _narrow(undo)
    finally:
        _narrow(undo)  # once more: an interrupt may have broken it off


def _widen(modules: Iterable[torch.nn.Module], undo: list[Widened]) -> None:
    for module in modules:
        groups: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for group in groups:
            for name, tensor in list(group.items()):
                if isinstance(tensor, torch.Tensor) and tensor.dtype in _WIDER:
                    wide = tensor.detach().to(_WIDER[tensor.dtype])
                    if isinstance(tensor, torch.nn.Parameter):
                        wide = torch.nn.Parameter(wide, False)
                    undo.append(Widened(group, name, tensor, wide, wide._version))
                    group[name] = wide


def _narrow(undo: Sequence[Widened]) -> None:
    """Put the modules' own tensors back, with what the call made of its buffers for the next one.

    The caller keeps the values that they had.
    """
    for one in reversed(undo):
        now = one.group.get(one.name)
        if isinstance(one.own, torch.nn.Parameter) or not isinstance(now, torch.Tensor):
            one.group[one.name] = one.own
        elif now is not one.wide:
            one.group[one.name] = now.to(one.own.dtype)
        else:
            if now._version != one.version:
                one.own.copy_(now)
            one.group[one.name] = one.own


_WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


def _tensors(flat: Flat) -> Tensors:
    return {name: value for name, value in flat.arrays if isinstance(value, torch.Tensor)}
