"""Record one run of the PyTorch side: every call of every submodule, by forward hooks."""

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from parity.capture import layout as layout_rules
from parity.capture import taps
from parity.capture.constants import constants
from parity.capture.recorder import WHOLE, Recorder, Subtree, bind, join
from parity.capture.restore_torch import HeldObject, counts_writes, kept_reference, with_tensors
from parity.core.calls import Leaf, ModuleInfo, Trace
from parity.core.exceptions import InputError
from parity.core.globs import path_name
from parity.core.store import Buffer, Store
from parity.core.tensors import Tensor
from parity.core.tree import Flat, containers, flatten, mapped, statics, with_statics
from parity.core.undo import undone

Method = str | Callable[..., Any]

LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
"""Modules that cannot be called."""


def record(
    module: torch.nn.Module,
    method: Method,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    store: Store,
    layout: Mapping[str, str],
    subtree: Subtree = WHOLE,
    moved: bool = False,
) -> Trace:
    """Run `module` without gradients and record all calls; it is left as it was whatever happens.

    `args` and `kwargs` may hold NumPy arrays and tensors, which are not written to. The called
    module's own row is made here, since a method other than `forward` runs no hook. Taps are
    recorded as calls are. If `moved`, all random streams are moved on before.
    """
    observer = _Observer(module, store, layout, subtree)
    with undone(lambda: unhook(module, observer)):
        for path, child in module.named_modules():
            if path and subtree.includes(join(subtree.prefix, path)):
                child.register_forward_pre_hook(observer.before, with_kwargs=True)
                child.register_forward_hook(observer.after, with_kwargs=True, always_call=True)
        args, kwargs = tensors(args, kwargs)
        objects = [value for _, value in flatten((args, kwargs)).statics]
        with torch.no_grad(), kept_reference(module, *objects) as kept:
            if moved:
                kept.move()
            observer.begin(module, bind(target(module, method), args, kwargs))
            with taps.observed(observer.tap):
                output = invoke(module, method, args, kwargs)
            observer.end(module, method if isinstance(method, str) else "__call__", output)
    info = {join(subtree.prefix, path): value for path, value in modules(module).items()}
    info = {p: one for p, one in info.items() if p == subtree.prefix or subtree.includes(p)}
    return Trace(observer.recorder.finish(), info)


def unhook(root: torch.nn.Module, observer: object) -> None:
    """Remove the observer's hooks: all, those too whose handles an interrupt kept from us."""
    for module in root.modules():
        for hooks, flags in (
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
            (module._forward_hooks, module._forward_hooks_with_kwargs),
        ):
            own = [key for key, hook in hooks.items() if getattr(hook, "__self__", 0) is observer]
            for key in own:
                del hooks[key]
                flags.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)


def modules(root: torch.nn.Module) -> dict[str, ModuleInfo]:
    """Every entry of `named_modules()`; a container is a module without a `forward` of its own."""
    return {
        path: ModuleInfo(
            path,
            type(module).__name__,
            container=isinstance(module, LISTS),
            parameters={n: p.numel() for n, p in module.named_parameters(recurse=False)},
            buffers={n: b.numel() for n, b in module.named_buffers(recurse=False)},
            constants=constants(module),
        )
        for path, module in root.named_modules()
    }


def kind_of(module: torch.nn.Module) -> layout_rules.Kind:
    """What the module says of the layout of its arrays: a class that only has the name of one of
    PyTorch's, or that inherits from it and does something else, may have another.
    """
    theirs = [cls for cls in type(module).__mro__ if cls.__module__.startswith("torch.nn.")]
    runs = next((cls for cls in type(module).__mro__ if "forward" in vars(cls)), None)
    sizes = {p.numel() for p in module.parameters(recurse=False) if p.ndim == 1} - {1}
    if len(theirs) > 1:
        names = ("in_channels", "out_channels", "in_features", "out_features")
        own = (vars(module).get(name) for name in names)
        sizes |= {size for size in own if isinstance(size, int)}
    return layout_rules.Kind(
        frozenset(cls.__name__ for cls in theirs), runs in theirs, frozenset(sizes)
    )


def optional_arguments(root: torch.nn.Module, method: Method) -> dict[str, tuple[str, ...]]:
    """By class, the arguments of `forward` that are `None` unless they are given; under `""` those
    of the method that are this, a truth or a number, with that value: `causal=False`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for module in root.modules():
        defaults = _defaults(module.forward)
        found[type(module).__name__] = tuple(n for n, value in defaults.items() if value is None)
    own = _defaults(target(root, method)).items()
    plain = [f"{name}={value}" for name, value in own if isinstance(value, (int, float))]
    return found | {"": (*(name for name, value in own if value is None), *plain)}


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled code may have none
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def named_tensors(root: torch.nn.Module) -> list[Tensor]:
    """Parameters and buffers of each module; on the host their values share its memory."""
    found = []
    for path, module in root.named_modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, value in (dict(module.named_parameters(recurse=False)) | buffers).items():
            read, shape = functools.partial(to_numpy, value), tuple(value.shape)
            derived = name in module._non_persistent_buffers_set
            buffer = name in buffers
            frozen = not (buffer or value.requires_grad)
            one = Tensor(path, name, shape, read, buffer, id(value), derived=derived, frozen=frozen)
            found.append(one)
    return found


def invoke(module: torch.nn.Module, method: Method, args: Any, kwargs: Any) -> Any:
    """Call a method by name, or a callable with the module in front."""
    if not isinstance(method, str):
        return method(module, *args, **kwargs)
    function = module if method == "__call__" else getattr(module, method)
    return function(*args, **kwargs)


def tensors(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with tensors for NumPy arrays, and copies of tensors."""
    made: dict[int, Any] = {}  # one tensor given twice stays one: attention looks at that

    def own(array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return made.setdefault(id(array), tensor_of(np.array(array, order="C")))
        if isinstance(array, torch.Tensor):
            return made.setdefault(id(array), array.clone())
        return array

    given: tuple[tuple[Any, ...], dict[str, Any]] = mapped(own, (args, dict(kwargs)))
    return given


def check_given(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a reference or arguments that are not on the CPU, where float64 runs are made, or
    that a run uses up.

    Raises:
        InputError: a parameter, a buffer or an argument is elsewhere, has no values yet, or is an
            iterator.
    """
    given = flatten((args, dict(kwargs)))
    found = [(f"argument {name.partition('.')[2]}", x) for name, x in given.arrays + given.statics]
    for name, tensor in (*module.named_parameters(), *module.named_buffers(), *found):
        if isinstance(tensor, Iterator):
            kind = type(tensor).__name__
            raise InputError(f"{name} is a {kind}, which one run uses up: expected a list")
        if not isinstance(tensor, torch.Tensor):
            continue
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"{name} of the reference has no values yet: call the reference once")
        if tensor.device.type != "cpu":
            where = f"{tensor.device}: move the reference and its arguments to the CPU, .cpu()"
            if tensor.device.type == "meta":
                where = "the device meta, which holds no values: load them first"
            raise InputError(f"{name} of the reference is on {where}")


def check_scripted(module: torch.nn.Module) -> None:
    """Refuse a reference with modules of TorchScript, which call each other unseen.

    Raises:
        InputError: it has.
    """
    for path, one in module.named_modules():
        if isinstance(one, torch.jit.ScriptModule):
            raise InputError(
                f"{path_name(path)} of the reference is a module of TorchScript, inside of which"
                " nothing is seen: compare the module from which it was scripted or traced"
            )


def to_numpy(tensor: torch.Tensor, moved: bool = False) -> np.ndarray[Any, Any]:
    """A contiguous NumPy array with the tensor's values, axis 1 `moved` to the end if asked for.

    Types that NumPy lacks are as ml_dtypes has them; what is sparse or quantised is written out.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        with temporarily_clear_interpreter_stack():
            return to_numpy(_unwrapped(tensor), moved)
    tensor = tensor.detach().cpu()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    tensor = tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor
    tensor = (tensor.movedim(1, -1) if moved else tensor).contiguous()
    lacking = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if lacking is not None:
        return tensor.view(_BITS[tensor.itemsize]).numpy().view(lacking)
    return tensor.resolve_conj().resolve_neg().numpy()


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that `torch.func.grad` and its like track.

    Raises:
        InputError: it is one of many at once, under `torch.func.vmap`.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            raise InputError(
                "the reference calls a module under torch.func.vmap, where what it gets and"
                " returns cannot be read: compare that module by itself"
            )
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor with the array's values, in its memory where that can be.

    Raises:
        InputError: PyTorch has no such type.
    """
    array = np.asarray(array).astype(array.dtype.newbyteorder("="), copy=False)  # a number too
    try:
        if array.dtype.kind == "V" and hasattr(ml_dtypes, array.dtype.name):
            bits = torch.from_numpy(array.view(f"i{array.itemsize}"))
            return bits.view(getattr(torch, array.dtype.name))
        return torch.from_numpy(array)
    except (TypeError, AttributeError):
        raise InputError(
            f"an argument of the reference is an array of {array.dtype}, which PyTorch does not"
            " have: give it another type"
        ) from None


_BITS = {1: torch.uint8, 2: torch.int16}


def target(module: torch.nn.Module, method: Method) -> Callable[..., Any]:
    """The function that `invoke` calls; its signature names the arguments."""
    if not isinstance(method, str):
        return functools.partial(method, module)
    function: Callable[..., Any] = getattr(module, "forward" if method == "__call__" else method)
    return function


class _Seen(NamedTuple):
    """A tensor that was recorded, not written to since, and how it was read."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    how: layout_rules.Reading
    buffer: Buffer


class _Observer:
    """Turns hook events into recorded calls."""

    def __init__(
        self,
        root: torch.nn.Module,
        store: Store,
        layout: Mapping[str, str],
        subtree: Subtree,
    ) -> None:
        self.recorder = Recorder()
        named = root.named_modules()
        self._paths = {id(module): join(subtree.prefix, path) for path, module in named}
        self._without_taps = subtree.without_taps(self._paths.values())
        self._store, self._layout = store, layout
        self._given: list[list[tuple[torch.Tensor, int]]] = []
        self._held: list[list[tuple[Any, Any]]] = []
        self._objects: list[list[HeldObject]] = []
        self._clones: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}
        self._seen: dict[int, _Seen] = {}
        self._thread = threading.get_ident()
        self._running: list[tuple[torch.nn.Module, BaseException | None]] = []
        """The modules that run, and the exception that is handled around each."""

    def before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self.begin(module, bind(module.forward, args, kwargs))
        self._running.append((module, sys.exception()))

    def after(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._running or self._running[-1][0] is not module:
            return  # it raised before it began
        if self._running.pop()[1] is sys.exception():
            self.end(module, "__call__", output)
        else:
            self._given.pop()
            self._held.pop()
            self._objects.pop()
            self.recorder.abort()

    def begin(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            raise InputError(
                f"the reference calls {self._paths[id(module)]!r} in a thread of its own, where"
                " calls have no order: have it call its modules one after another"
            )
        given = flatten(arguments)
        self._given.append([(x, x._version) for _, x in given.arrays if counts_writes(x)])
        self._held.append([(one, copy(one)) for one in containers(arguments)])
        self._objects.append([*map(HeldObject, statics(given.skeleton))])
        path, kind = self._paths[id(module)], kind_of(module)
        as_given = with_statics(given.skeleton, lambda one: with_tensors(one, self._clone))
        self.recorder.begin(path, self._leaves(path, kind, given), as_given)

    def end(self, module: torch.nn.Module, method: str, output: Any) -> None:
        returned = flatten(output)
        written = any(tensor._version != version for tensor, version in self._given.pop())
        written |= any(not _same(one, before) for one, before in self._held.pop())
        written |= any(one.changed for one in self._objects.pop())
        self.recorder.end(
            type(module).__name__,
            method,
            self._leaves(self._paths[id(module)], kind_of(module), returned),
            returned=returned.skeleton,
            in_place=written,
        )

    def tap(self, name: str, value: Any) -> Any:
        if "*" in name:
            raise InputError(f"tap {name!r}: a loop of the reference is Python's; write its number")
        running = self.recorder.running
        if running is not None and running not in self._without_taps:
            path, given = join(running, name), flatten(value)
            self.recorder.point(path, self._leaves(path, layout_rules.TAP, given), given.skeleton)
        return value

    def _leaves(self, path: str, kind: layout_rules.Kind, flat: Flat) -> tuple[Leaf, ...]:
        leaves = [Leaf(name, value=static) for name, static in flat.statics]
        for name, array in flat.arrays:
            tensor = array if isinstance(array, torch.Tensor) else tensor_of(np.asarray(array))
            floating = tensor.is_floating_point() or tensor.is_complex()
            how = layout_rules.reading(path, name, kind, tensor.shape, floating, self._layout)
            if not how.sure:  # a call before, which was given it or returned it, may tell
                how = self._told(tensor) or how
            buffer = self._put(tensor, how, cache=tensor is array)
            leaves.append(Leaf(name, buffer, moved=how.move, sure=how.sure))
        return tuple(leaves)

    def _clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in an object, the same until it is written to."""
        version = tensor._version if counts_writes(tensor) else -1
        known = self._clones.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != version or version < 0:
            known = weakref.ref(tensor), version, tensor.detach().clone()
            self._clones[id(tensor)] = known
        return known[2]

    def _told(self, tensor: torch.Tensor) -> layout_rules.Reading | None:
        """How the same tensor was read before, if that was sure."""
        known = self._known(tensor) if counts_writes(tensor) else None
        return known.how if known and known.how.sure else None

    def _known(self, tensor: torch.Tensor) -> _Seen | None:
        known = self._seen.get(id(tensor))
        same = known and known.tensor() is tensor and known.version == tensor._version
        return known if same else None

    def _put(self, tensor: torch.Tensor, how: layout_rules.Reading, cache: bool) -> Buffer:
        # The same tensor passes through many hooks: hash it once, unless it was written to since.
        cache = cache and counts_writes(tensor)
        known = self._known(tensor) if cache else None
        if known is None or known.how.move != how.move:
            buffer = self._store.put(to_numpy(tensor, how.move))
        else:
            buffer, how = known.buffer, known.how if known.how.sure else how
        if cache:
            self._seen[id(tensor)] = _Seen(weakref.ref(tensor), tensor._version, how, buffer)
        return buffer


def _same(one: Any, before: Any) -> bool:
    """True if a list or dict holds the very objects that it held before."""
    sides = (list(x.items()) if isinstance(x, dict) else list(enumerate(x)) for x in (one, before))
    return [(key, id(value)) for key, value in next(sides)] == [(k, id(v)) for k, v in next(sides)]
