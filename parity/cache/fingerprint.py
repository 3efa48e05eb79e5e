"""A digest of Python values: models with their tensors, arguments, functions with what they use.

Two values with one digest behave alike. What cannot be told is refused, never left out.
"""

import enum
import functools
import hashlib
import itertools
import logging
import re
import sys
import types
import weakref
from collections import defaultdict, deque, namedtuple
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from parity.cache.code import (
    OUTSIDE,
    TYPED_IN,
    Unknown,
    compiled,
    file_of,
    foreign,
    globals_of,
    is_installed,
    members,
    package_of,
)
from parity.capture import torch as capture_torch
from parity.core.store import digest

_PLAIN = (type(None), bool, int, str, bytes, complex, range, slice, type(Ellipsis))
_SHOWN = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo,
    torch.iinfo, np.dtype, PurePath, types.GenericAlias, types.UnionType,
    logging.Logger, logging.LoggerAdapter,
)  # fmt: skip
"""What is all in its `repr`; a logger changes no figure."""

_SET = (bool, int, float, str)
"""What somebody may set in a class or a module of an installed package."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PASSIVE = frozenset(
    name for name in vars(torch.nn.Module())
    if name.startswith(("_backward_", "_state_dict_", "_load_state_dict_", "_is_full_backward_hook",
                        "_forward_hooks_", "_forward_pre_hooks_", "_non_persistent_buffers_set"))
)  # fmt: skip
"""The attributes of every module that change nothing without gradients."""


_TupleGetter = type(vars(namedtuple("_One", "one"))["one"])

_HEAP_TYPE = 1 << 9
"""The flag of a class that is not built into the interpreter."""


class Fingerprint:
    """Takes in one value after another; `hex` is the digest of all so far."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []  # an object that is gone would leave its id to another
        self._packages: set[str] = set()

    @property
    def hex(self) -> str:
        """64 hexadecimal digits."""
        found = self._hash.copy()
        for name in sorted(self._packages):
            found.update(package_of(name).encode())
        return found.hexdigest()

    def add(self, value: Any, where: str = "") -> None:
        """Take a value in; `where` is what messages call it.

        Raises:
            Unknown: nobody can say what it holds or does.
        """
        kind = type(value)
        if kind in _PLAIN or _is_shown(value):
            self._say(kind.__qualname__, repr(value))
        elif kind is float:
            self._say("float", value.hex())
        elif id(value) in self._seen:
            self._say("again", self._seen[id(value)])
        else:
            self._seen[id(value)] = len(self._seen)
            self._held.append(value)
            self._add_new(value, where)

    def _say(self, *words: object) -> None:
        for word in words:
            text = str(word).encode("utf-8", "surrogatepass")
            self._hash.update(f"{len(text)}:".encode() + text)

    def _add_new(self, value: Any, where: str) -> None:
        match value:
            case enum.Enum():
                self._say("enum", value.name)
                self.add(type(value))
                self._items(vars(value), where)
            case re.Pattern():
                self._say("pattern", repr(value.pattern), value.flags)
            case torch.Tensor():
                self._tensor(value, where)
            case np.ndarray() if value.dtype.kind != "O":
                self._say("array", value.dtype.name, value.shape, value.strides, digest(value))
            case type():
                self._class(value)
            case types.FunctionType():
                self._function(value)
            case types.MethodType():
                self._say("method")
                self._all((value.__func__, value.__self__), where)
            case types.BuiltinFunctionType() | types.MethodWrapperType():
                self._built_in(value, where)
            case types.ModuleType():
                self._module(value)
            case functools.partial():
                self._say("partial")
                self._all((value.func, value.args, value.keywords), where)
            case weakref.ReferenceType():
                self._say("weak")
                self.add(value(), where)
            case property():
                self._say("property")
                self._all((value.fget, value.fset, value.fdel), where)
            case staticmethod() | classmethod():
                self._say(type(value).__name__)
                self.add(value.__func__, where)
            case _TupleGetter() | types.MemberDescriptorType() | types.GetSetDescriptorType():
                self._say("slot", getattr(value, "__name__", ""))
            case types.WrapperDescriptorType() | types.MethodDescriptorType():
                self._say("native", value.__qualname__)
            case functools.cached_property():
                self._say("cached property")
                self.add(value.func, where)
            case functools._lru_cache_wrapper():
                self._say("cached function")
                self.add(value.__wrapped__, where)
            case types.SimpleNamespace():
                self._say("namespace")
                self._items(vars(value), where)
            case _:
                self._object(value, where)

    def _items(self, values: Mapping[str, Any], where: str) -> None:
        """Values by name."""
        self._say(len(values))
        for name, value in values.items():
            self._say(name)
            self.add(value, f"{where}.{name}" if where else name)

    def _all(self, values: Any, where: str) -> None:
        values = list(values)
        self._say(len(values))
        for value in values:
            self.add(value, where)

    def _tensor(self, value: torch.Tensor, where: str) -> None:
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise Unknown(f"{where} is a tensor of a kind that is not kept")
        array = capture_torch.to_numpy(value)
        self._say("tensor", type(value).__qualname__, value.dtype, value.device)
        self._say(tuple(value.shape), value.stride(), digest(array))
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            self.add(type(value))
        if vars(value):
            self._items(vars(value), where)

    def _named(self, value: Any) -> bool:
        """Say what something is called; whether that is enough, as it is installed."""
        home = str(getattr(value, "__module__", None) or "builtins")
        self._say(home, getattr(value, "__qualname__", ""))
        file = file_of(home)
        if isinstance(value, types.FunctionType):
            # a decorator may have given it the name of another
            file, home = value.__code__.co_filename, str(value.__globals__.get("__name__"))
        if is_installed(file):
            self._packages.add(home.partition(".")[0])
            return True
        return False

    def _class(self, cls: type) -> None:
        self._say("class", len(cls.__mro__))
        if type(cls) is not type:
            self.add(type(cls))
        for one in cls.__mro__:
            installed, own = self._named(one), members(one)
            if installed:
                own = {**_set_in(own), **foreign(own)}
            self._items(own, f"`{one.__qualname__}`")

    def _function(self, function: types.FunctionType) -> None:
        self._say("function")
        installed = self._named(function)
        closure = [_content(cell) for cell in function.__closure__ or ()]
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not installed:
            for value in filter(_is_outside, (*closure, *defaults)):
                raise Unknown(f"`{function.__qualname__}` holds `{_called(value)}`")
        self._all([function.__defaults__, function.__kwdefaults__, *closure], function.__qualname__)
        if installed:
            return
        self._constants(compiled(function.__code__))
        self._items(vars(function), function.__qualname__)
        used = dict(globals_of(function))
        for name, value in used.items():
            if _is_outside(value):
                raise Unknown(f"`{function.__qualname__}` uses `{name}`")
        self._items(used, f"`{function.__qualname__}`")

    def _constants(self, value: Any) -> None:
        """What is in a code object: plain values, compared with their types."""
        if isinstance(value, tuple):
            self._say("(", len(value))
            for item in value:
                self._constants(item)
        elif isinstance(value, frozenset):
            self._say("set", sorted(map(repr, value)))
        else:
            self._say(type(value).__name__, repr(value))

    def _built_in(self, value: Any, where: str) -> None:
        owner = value.__self__
        self._say("native", value.__qualname__)
        if owner is None or isinstance(owner, type):
            self._named(value if owner is None else owner)
        else:
            self.add(owner, where)

    def _module(self, module: types.ModuleType) -> None:
        """An installed one by its name; of another all that it defines and imports."""
        name = module.__name__
        self._say("module", name)
        file = getattr(module, "__file__", None)
        own = {key: value for key, value in sorted(vars(module).items())
               if not (key.startswith("__") and key.endswith("__"))}  # fmt: skip
        if is_installed(file_of(name) if sys.modules.get(name) is module else file):
            self._packages.add(name.partition(".")[0])
            public = {key: value for key, value in own.items() if not key.startswith("_")}
            own = {**_set_in(public), **foreign(own)}  # others count, as `logging._startTime`
        self._items(own, f"`{name}`")

    def _object(self, value: Any, where: str) -> None:
        cls = type(value)
        native = next(one for one in cls.__mro__ if not _is_python(one))
        self._say("object")
        self.add(cls)
        if native in (list, tuple, deque):
            self._all(value, where)
        elif issubclass(native, (dict, types.MappingProxyType)):
            self.add(value.default_factory if isinstance(value, defaultdict) else None, where)
            self._say(len(value))
            for key, item in value.items():
                self.add(key, where)
                self.add(item, f"{where}[{key!r}]")
        elif native in (set, frozenset):
            self._say(sorted(_alone(item) for item in value))
        elif native in (int, float, str, bytes):
            self._say(native.__repr__(value))
        elif native is not object or cls is object:
            raise Unknown(f"{where} is a {cls.__qualname__}, which does not tell what it holds")
        held = dict(vars(value)) if hasattr(value, "__dict__") else {}
        for one in cls.__mro__:
            slots = vars(one).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    held[name] = getattr(value, name)
        if isinstance(value, torch.nn.Module):
            hooks = [list(held.pop(name, {}).values()) for name in _HOOKS]
            self._hooks(hooks, where)
            held = {name: item for name, item in held.items() if name not in _PASSIVE}
        if not is_installed(file_of(cls.__module__)):
            for item in filter(_is_outside, held.values()):
                raise Unknown(f"{where} holds `{_called(item)}`")
        self._items(held, where)

    def _hooks(self, hooks: Sequence[Sequence[Any]], where: str) -> None:
        """Those of PyTorch itself, such as that of a weight norm, follow from what they hold."""
        for hook in itertools.chain(*hooks):
            home = getattr(hook, "__module__", None) or type(hook).__module__
            if not str(home).startswith("torch."):
                raise Unknown(f"a hook is registered on {where or 'the reference'}")
        for some in hooks:
            self._all(some, f"a hook of {where}")


def _called(value: Any) -> str:
    return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__)))


def _is_outside(value: Any) -> bool:
    """Whether it asks for what is not in the process's objects: however code holds it."""
    homes = [getattr(one, "__module__", None) for one in (value, getattr(value, "__self__", None))]
    if isinstance(value, types.ModuleType):
        homes = [value.__name__]
    return any(str(home).partition(".")[0] in OUTSIDE for home in homes)


def _is_python(cls: type) -> bool:
    """Whether the class is written in Python: what its instances add is in their attributes."""
    file = file_of(cls.__module__) or ""
    written = any(isinstance(value, types.FunctionType) for value in vars(cls).values())
    return bool(cls.__flags__ & _HEAP_TYPE) and (
        file.endswith(".py") or (file == TYPED_IN and written)
    )


def _is_shown(value: Any) -> bool:
    """Whether its `repr` says all; that of an enum's member may leave out its value."""
    if isinstance(value, enum.Enum):
        return False
    return isinstance(value, (*_SHOWN, np.generic)) or type(value).__module__ == "typing"


def _set_in(own: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of an installed class or module."""
    return {name: value for name, value in own.items() if type(value) in _SET}


def _alone(value: Any) -> str:
    found = Fingerprint()
    found.add(value)
    return found.hex


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
