"""Names of modules in compiled programs: each call is made in a scope of its module's name.

Not in diffusers. Scopes nest as calls do, so that the operations of a program, and a profile of it,
carry paths such as `decoder/up_blocks/1/resnets/0/conv1`. They are metadata: the program computes
what it would without them, and compiled programs are found by the same keys.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import jax
from flax import nnx

_caller: ContextVar[nnx.Module | None] = ContextVar("jaxvae_caller", default=None)
_path: ContextVar[str] = ContextVar("jaxvae_path", default="")


class Module(nnx.Module):
    """An `nnx.Module` whose calls are made in a scope of its name.

    The name is that under which the calling module holds it; a module that no other calls has none.
    It is looked for at the call and not kept: a kept one would be a static attribute, and modules
    that differ in one cannot be stacked.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            setattr(cls, "__call__", _scoped(vars(cls)["__call__"]))  # noqa: B010


@contextmanager
def entered(module: nnx.Module) -> Iterator[None]:
    """The block is a call of `module`, by the module whose call this is in."""
    name = _name(_caller.get(), module)
    token = _caller.set(module)
    try:
        with scope(name) if name else nullcontext():
            yield
    finally:
        _caller.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """The block's operations have `name` in theirs, after those of the scopes around it."""
    token = _path.set(f"{path()}/{name}".lstrip("/"))
    try:
        with jax.named_scope(name):
            yield
    finally:
        _path.reset(token)


def path() -> str:
    """Return the names of the scopes that this is in, `decoder/up_blocks/1`."""
    return _path.get()


def _scoped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: nnx.Module, *args: Any, **kwargs: Any) -> Any:
        with entered(self):
            return function(self, *args, **kwargs)

    return call


def _name(caller: nnx.Module | None, module: nnx.Module) -> str:
    for name, value in vars(caller).items() if caller is not None else ():
        if value is module:
            return name
        if isinstance(value, nnx.List):
            for i, item in enumerate(value):
                if item is module:
                    return f"{name}/{i}"
    return ""
