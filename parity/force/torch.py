"""The reference in float64: calls get the recorded float32 inputs and return recorded outputs.

Its modules are widened one by one, each for the time of its call: there is never a float64 copy of
the whole model.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity.capture import taps
from parity.capture.recorder import bind, join, unbind
from parity.capture.restore_torch import kept_reference, with_tensors
from parity.capture.torch import Method, invoke, target, unhook
from parity.core.arrays import Array
from parity.core.calls import Call, LeafMatch, Match, above
from parity.core.exceptions import first_line
from parity.core.measurements import NOT_IN_FLOAT64
from parity.core.store import Buffer, Store
from parity.core.tree import Flat, containers, flatten, hand_back, rebuild, statics, with_statics
from parity.core.undo import undone
from parity.force.common import Recording, Turns, by_ref_leaf

Forward = Callable[..., Any]
Tensors = Mapping[str, torch.Tensor]
Listener = Callable[[Match, Tensors, Tensors], None]
"""Callback for each call: what its parent passed to it and what it returned, in float64."""
ChangedArguments = Callable[[dict[str, Any]], dict[str, Any]]


class Mode(TorchFunctionMode):
    """Sees operations while it is `active`: those of the harness itself are left out."""

    active = True


def force_reference(
    root: torch.nn.Module,
    method: Method,
    recording: Recording,
    listener: Listener,
    wanted: Collection[int],
    mode: Mode | None = None,
    change: ChangedArguments = dict,
) -> str:
    """Make the recorded calls again, pass each to `listener`, and return why that failed, or "".

    Calls whose `order` is not `wanted` return what they returned before, and are not computed:
    `listener` gets their inputs and no outputs.

    A module's weights are float64 while it runs, and those of modules inside it that never run by
    themselves. If that is not enough, because some code reads the weights of a module that also
    runs, all are. `mode` sees the operations of the root's local computation; `change` is applied
    to the root's arguments by name.
    """
    problem = ""
    for everything in (False, True):
        run = _Run(root, recording, listener, wanted, mode, everything)
        try:
            objects = statics(recording.root.ref.arguments)
            with torch.no_grad(), kept_reference(root, *objects) as kept:
                kept.move()  # what is drawn is no rounding
                run(method, change)
            return ""
        except Exception as error:  # code written for float32 fails in ways of its own
            problem = f"{NOT_IN_FLOAT64}: {first_line(error)}"
    return problem


def arguments64(
    function: Forward, call: Call, store: Store, change: ChangedArguments = dict
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The recorded arguments of a call of `function`, in float64."""
    if call.arguments is None:
        raise ValueError(f"the arguments of {call.path!r} were not recorded")

    def wide(buffer: Buffer, moved: bool) -> torch.Tensor:
        return widen(store.get(buffer), moved)

    if not call.in_place:  # one tensor given twice stays one: attention looks at that
        wide = functools.cache(wide)
    arrays = [wide(leaf.buffer, leaf.moved) for leaf in call.inputs if leaf.buffer]
    given = with_statics(call.arguments, lambda one: with_tensors(one, _wide))
    return unbind(function, change(rebuild(given, arrays)))


class Calls:
    """One run of a root in which each matched call inside it goes through `around`."""

    def __init__(self, root: torch.nn.Module, recording: Recording) -> None:
        self.root, self.match, self.store = root, recording.root, recording.store
        self.prefix = self.match.ref.path
        self.paths = {module: join(self.prefix, path) for path, module in root.named_modules()}
        matches = {match.ref.order: match for match in recording.matches}
        self.turns = Turns(matches, recording.calls)

    def around(self, match: Match, forward: Forward, given: Flat, held: Sequence[Any]) -> Any:
        """Make a matched call; `held` are the lists and dicts among its arguments."""
        raise NotImplementedError

    def watched(self) -> AbstractContextManager[None]:
        """A context in which the root may be called."""
        return replaced_forwards([one for one in self.paths if one is not self.root], self.call)

    def call(
        self, module: torch.nn.Module, forward: Forward, called: bool, args: Any, kwargs: Any
    ) -> Any:
        """Stand in for the `forward` of one module."""
        match = self.turns.next(self.paths[module]) if called else None
        if match is None:
            return forward(*args, **kwargs)
        arguments = bind(forward, args, kwargs)
        held = containers(tuple(arguments.values()))
        return self.around(match, forward, flatten(arguments), held)


class _Run(Calls):
    def __init__(
        self,
        root: torch.nn.Module,
        recording: Recording,
        listener: Listener,
        wanted: Collection[int],
        mode: Mode | None,
        everything: bool,
    ) -> None:
        super().__init__(root, recording)
        self._listener, self._mode, self._everything = listener, mode, everything
        self._narrowing, self._orders = recording.narrowing, [recording.root.ref.order]
        calls = recording.calls
        called = {call.path for call in calls}
        self._idle = {m for m, path in self.paths.items() if path not in called}
        parents = {call.order: call.parent for call in calls}
        # what is around a wanted call is made too, and what writes to its arguments
        made = (*wanted, *(call.order for call in calls if call.in_place))
        self._wanted = {one for order in made for one in above(order, parents)}
        self._running = [self.prefix]

    def __call__(self, method: Method, change: ChangedArguments) -> None:
        widened = self.paths if self._everything else self._with_idle(self.root)
        with widened_modules(widened), self.watched():
            function = target(self.root, method)
            args, kwargs = arguments64(function, self.match.ref, self.store, change)
            # the mode sees casts as they are made here, and what it makes itself may be narrow
            widening = Widening(lambda: self._narrowing(self._orders[-1]))
            with taps.observed(self._tap), self._mode or nullcontext(), widening:
                returned = invoke(self.root, method, args, kwargs)
            self._listener(self.match, {}, tensors_of(flatten(returned)))

    def call(
        self, module: torch.nn.Module, forward: Forward, called: bool, args: Any, kwargs: Any
    ) -> Any:
        """Widen one module while it runs."""
        with ExitStack() as stack:
            with self._unseen():
                widened = [] if self._everything else self._with_idle(module)
                stack.enter_context(widened_modules(widened))
            if called:
                self._running.append(self.paths[module])
                stack.callback(self._running.pop)
            return super().call(module, forward, called, args, kwargs)

    def _tap(self, name: str, value: Any) -> Any:
        """Stand in for a tap: return what it recorded."""
        match = self.turns.next(join(self._running[-1], name))
        if match is None:
            return value
        with self._unseen():
            given = flatten(value)
            self._listener(match, {}, tensors_of(given))
            return rebuild(given.skeleton, self._replaced(given, match.outputs))

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Hide from the mode what happens in the block: it is no local computation of the root."""
        if self._mode is None:
            yield
            return
        before, self._mode.active = self._mode.active, False
        try:
            yield
        finally:
            self._mode.active = before

    def around(self, match: Match, forward: Forward, given: Flat, held: Sequence[Any]) -> Any:
        with self._unseen():
            if match.ref.order not in self._wanted:
                self._listener(match, tensors_of(given), {})
                self.turns.skip(match.ref.order)
                assert match.ref.returned is not None
                outputs = [(leaf.buffer, leaf.moved) for leaf in match.ref.outputs if leaf.buffer]
                wide = [widen(self.store.get(buffer), moved) for buffer, moved in outputs]
                return rebuild(match.ref.returned, wide)
            passed = Replaced(given, self._replaced(given, match.inputs), held)
            self._orders.append(match.ref.order)
            try:
                output = passed.call(forward)
            finally:  # the code around may catch what it raises
                self._orders.pop()
            self._listener(match, tensors_of(given), tensors_of(output))
            return passed.result(output, self._replaced(output, match.outputs))

    def _replaced(self, flat: Flat, matches: Sequence[LeafMatch]) -> list[Any]:
        leaves = by_ref_leaf(matches)
        arrays = []
        known: dict[int, Any] = {}  # one tensor given twice stays one: attention looks at that
        for name, own in flat.arrays:
            leaf = leaves.get(name)
            if id(own) not in known and leaf is not None and leaf.buffer is not None:
                value = widen(self.store.get(leaf.buffer), leaf.moved)
                known[id(own)] = value if value.shape == own.shape else own
            arrays.append(known.get(id(own), own))
        return arrays

    def _with_idle(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """The module, and those inside it whose weights only it can use."""
        return [module, *(m for m in module.modules() if m is not module and m in self._idle)]


class Replaced:
    """A call on other `arrays`; the arrays of its parent, and the lists and dicts that it `held`,
    get what the call writes to them.
    """

    def __init__(self, given: Flat, arrays: Sequence[Any], held: Sequence[Any] = ()) -> None:
        self._skeleton, self._arrays, self._held = given.skeleton, arrays, held
        both = zip([own for _, own in given.arrays], arrays, strict=True)
        self._pairs = [
            (own, new, new._version)
            for own, new in both
            if isinstance(own, torch.Tensor) and new is not own
        ]

    def call(self, forward: Forward) -> Flat:
        """Make the call."""
        arguments = rebuild(self._skeleton, self._arrays)
        passed = containers(tuple(arguments.values()))
        args, kwargs = unbind(forward, arguments)
        output = flatten(forward(*args, **kwargs))
        hand_back(self._held, passed)
        return output

    def result(self, output: Flat, arrays: Sequence[Any]) -> Any:
        """The output with other `arrays` for its own."""
        for own, new, version in self._pairs:
            if new._version != version:
                returned = zip([out for _, out in output.arrays], arrays, strict=True)
                own.copy_(next((array for out, array in returned if out is new), new))
        return rebuild(output.skeleton, arrays)


@contextmanager
def replaced_forwards(
    modules: Collection[torch.nn.Module],
    call: Callable[[torch.nn.Module, Forward, bool, Any, Any], Any],
) -> Iterator[None]:
    """Let `call` stand in for the `forward` of each module in the block.

    It is given the module, its `forward`, whether the module itself was called, and the arguments:
    of `module.forward(x)` hooks are not called, so that it was not recorded as a call.
    """
    stand_in = _StandIn(call)
    own = {module: vars(module).get("forward") for module in modules}
    hooks = {module: dict(module._forward_hooks) for module in modules}

    def undo() -> None:
        for module, held in hooks.items():
            module._forward_hooks.update(held)
        for module, forward in own.items():
            vars(module).pop("forward", None)
            if forward is not None:
                vars(module)["forward"] = forward
            unhook(module, stand_in)

    with undone(undo):
        for module in modules:
            module.register_forward_pre_hook(stand_in.before)
            module._forward_hooks.clear()
            vars(module)["forward"] = functools.partial(  # past what a class of the user's refuses
                stand_in.forward, module, module.forward, hooks[module]
            )
        yield


class _StandIn:
    def __init__(self, call: Callable[[torch.nn.Module, Forward, bool, Any, Any], Any]) -> None:
        self._call = call
        self._called: set[torch.nn.Module] = set()

    def before(self, module: torch.nn.Module, _: Any) -> None:
        self._called.add(module)

    def forward(
        self,
        module: torch.nn.Module,
        forward: Forward,
        hooks: Mapping[int, Callable[..., Any]],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        called = module in self._called
        self._called.discard(module)
        if called and hooks:
            forward = _hooked(module, forward, hooks)
        return self._call(module, forward, called, args, kwargs)


def _hooked(
    module: torch.nn.Module, forward: Forward, hooks: Mapping[int, Callable[..., Any]]
) -> Forward:
    """The `forward` with what the user's hooks make of its output, of which a call is the whole."""

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        for key, hook in hooks.items():
            named = (kwargs,) if key in module._forward_hooks_with_kwargs else ()
            changed = hook(module, args, *named, output)
            output = output if changed is None else changed
        return output

    return call


@dataclass(frozen=True)
class Widened:
    """A tensor and the float64 copy that stands in its place, not written to since `version`."""

    group: Any
    name: Any
    own: torch.Tensor
    wide: torch.Tensor
    version: int


@contextmanager
def widened_modules(
    modules: Iterable[torch.nn.Module], *, wide: bool = True
) -> Iterator[list[Widened]]:
    """Put float64 copies in place of the modules' own tensors in the block.

    Those that are not `wide` are of the same type.
    """
    widened: list[Widened] = []
    with float64_by_default() if wide else nullcontext(), undone(lambda: _narrow(widened)):
        _widen(modules, widened, wide)
        yield widened


@contextmanager
def float64_by_default() -> Iterator[None]:
    """Have what code makes in the block be of float64 too."""
    default = torch.get_default_dtype()
    if default == torch.float64:
        # of a block in another the end may come last, if an interrupt breaks off both
        yield
        return
    with undone(lambda: torch.set_default_dtype(default)):
        torch.set_default_dtype(torch.float64)
        yield


def _widen(modules: Iterable[torch.nn.Module], widened: list[Widened], to_wide: bool) -> None:
    for module in modules:
        held: list[tuple[Any, Any, Any]] = []
        for group in (module._parameters, module._buffers, vars(module)):
            held += [(group, name, value) for name, value in group.items()]
        for values in vars(module).values():
            if isinstance(values, list):  # recurrent modules run on a list of their parameters
                held += [(values, i, p) for i, p in enumerate(values) if _is_parameter(p)]
        for group, name, tensor in held:
            if isinstance(tensor, torch.Tensor) and tensor.dtype in _WIDER:
                wide = tensor.detach().to(_WIDER[tensor.dtype] if to_wide else tensor.dtype)
                if _is_parameter(tensor):
                    wide = torch.nn.Parameter(wide, False)
                widened.append(Widened(group, name, tensor, wide, wide._version))
                group[name] = wide


def _narrow(widened: Sequence[Widened]) -> None:
    """Put the modules' own tensors back, with what the call made of its buffers for the next one.

    The caller keeps the values that they had.
    """
    for one in reversed(widened):
        now = None if _is_parameter(one.own) else one.group.get(one.name)
        if now is one.wide and now._version != one.version:
            one.own.copy_(now)
        if isinstance(now, torch.Tensor) and now is not one.wide:
            one.group[one.name] = now.to(one.own.dtype)
        else:
            one.group[one.name] = one.own


def _is_parameter(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter)


class Widening(TorchFunctionMode):
    """Casts to floats of fewer bits widen: code such as `x.bfloat16()` rounds no float64 run.

    `narrowing` is called for each to a half of the bits of float32.
    """

    def __init__(self, narrowing: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._narrowing = narrowing

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _HALVING or any(_is_half(one) for one in (*args, *kwargs.values())):
            self._narrowing()
        if func in _CASTS:
            return args[0].double()
        kwargs = {name: _wider(value) for name, value in kwargs.items()}
        return func(*map(_wider, args), **kwargs)


def _wider(value: Any) -> Any:
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in (torch.float16, torch.bfloat16)


_HALVING = (torch.Tensor.half, torch.Tensor.bfloat16)

_CASTS = (torch.Tensor.float, *_HALVING)

_WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_WIDER.get(tensor.dtype, tensor.dtype), copy=True)


def widen(array: Array, moved: bool) -> torch.Tensor:
    """A recorded array as a tensor in PyTorch's layout, floats in float64."""
    # NumPy knows bfloat16 only by name: it widens what torch would refuse
    if array.dtype.kind not in "biu":
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    tensor = torch.from_numpy(array)
    return tensor.movedim(-1, 1) if moved else tensor


def tensors_of(flat: Flat) -> Tensors:
    """The tensors among the arrays, by name."""
    return {name: value for name, value in flat.arrays if isinstance(value, torch.Tensor)}
