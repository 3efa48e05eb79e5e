"""Record one run of the NNX side: every call of every submodule, eager or under `jit`.

Inside `jit` arrays are tracers: they reach the record by ordered callbacks.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import io_callback
from jax.extend.core import find_top_trace, get_opaque_trace_state

from parity.capture.constants import constants
from parity.capture.functional import Functional
from parity.capture.hooks_nnx import Observer, can_be_called, observed
from parity.capture.linen import Part, parts
from parity.capture.recorder import WHOLE, Recorder, Subtree, bind, join
from parity.capture.restore_nnx import as_given, kept_port
from parity.core.calls import Leaf, ModuleInfo, Trace
from parity.core.exceptions import InputError
from parity.core.store import Store
from parity.core.tensors import Tensor
from parity.core.tree import Flat, flatten, mapped, with_statics

Method = str | Callable[..., Any]

STATEFUL = (nnx.Module, nnx.Rngs, nnx.RngStream, nnx.Variable, jax.core.Tracer)
"""Objects that hold tracers under `jit`."""


def record(
    module: nnx.Module,
    method: Method,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    store: Store,
    subtree: Subtree = WHOLE,
) -> Trace:
    """Run `module` and record all calls; it and its class are left as they were whatever happens.

    `args` and `kwargs` may hold NumPy arrays, channel-last. Calls under `jax.vmap`, and those that
    are differentiated, are not recorded: no single call of the reference is one of them. Taps are
    recorded where nothing is traced: elsewhere what was traced before hides them, and what is
    traced now would stay in JAX's caches.
    """
    prefix = subtree.prefix
    found = {join(prefix, path): child for path, child in submodules(module).items()}
    called = [path for path, child in found.items() if can_be_called(type(child))]
    observer = _RecordingObserver(store, prefix, subtree.without_taps(called))
    args, kwargs = arrays(args, kwargs)
    given = flatten(bind(target(module, method), args, kwargs))
    inner = {p: child for p, child in found.items() if child is not module and subtree.includes(p)}
    objects = [value for _, value in given.statics]
    with kept_port(module, *objects), observed(inner, observer):
        observer.begin(prefix, given)
        output = target(module, method)(*args, **kwargs)
        name = method if isinstance(method, str) else "__call__"
        observer.end(type(module).__name__, name, flatten(output))
    info = {path: module_info(path, child) for path, child in ({prefix: module} | inner).items()}
    linen = {path: child for path, child in inner.items() if isinstance(child, Part)}
    hidden, untapped = frozenset(observer.hidden), frozenset(observer.untapped)
    return Trace(observer.recorder.finish(), info, hidden, linen, untapped)


def submodules(root: nnx.Module) -> dict[str, nnx.Module]:
    """Every module by dotted path, the root as `""`; a shared module under its first path.

    Those of Linen can be called once they were recorded: see `Trace.linen`.
    """
    found: dict[str, nnx.Module] = {}
    for path, value in _nodes(root):
        if isinstance(value, nnx.Module) and not isinstance(value, (nnx.List, nnx.Dict)):
            found[path] = value
        if isinstance(value, nnx.bridge.ToNNX):
            found |= {join(path, name): part for name, part in parts(value).items()}
    return found


def layer(stacked: nnx.Module, turn: int) -> nnx.Module:
    """One of the layers that a module holds stacked along the first axis of its variables."""
    graph, state = nnx.split(stacked)
    one: nnx.Module = nnx.merge(graph, jax.tree.map(lambda values: values[turn], state))
    return one


PLAIN = {int, float, bool, str, type(None), FunctionType}
"""Types of which a module has many attributes, and none of its nodes."""


def _nodes(root: nnx.Module) -> Iterator[tuple[str, Any]]:
    """Modules, their containers and their variables by dotted path, each node once."""
    seen: set[int] = set()

    def visit(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, nnx.Variable):
            yield path, value
        if not isinstance(value, (nnx.Module, list, tuple, dict)) or id(value) in seen:
            return
        seen.add(id(value))
        yield path, value
        if isinstance(value, Functional):
            value = value.held
        if isinstance(value, nnx.Module):
            items: Any = vars(value).items()  # List and Dict keep their items as attributes too
        else:
            items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, child in items:
            if type(child) not in PLAIN:
                yield from visit(child, join(path, str(name)))

    return visit(root, "")


def module_info(path: str, module: nnx.Module) -> ModuleInfo:
    """Class name and own tensors of a module; random state is neither parameter nor buffer."""
    own = own_variables(module)
    own = {name: one for name, one in own.items() if not isinstance(one, nnx.RngState)}
    sizes = {name: _size(join(path, name), one.get_value()) for name, one in own.items()}
    return ModuleInfo(
        path,
        type(module).__name__,
        container=not (isinstance(module, Part) or can_be_called(type(module))),
        parameters={k: n for k, n in sizes.items() if isinstance(own[k], nnx.Param)},
        buffers={k: n for k, n in sizes.items() if not isinstance(own[k], nnx.Param)},
        constants=constants(module),
    )


def _size(name: str, value: Any) -> int:
    if isinstance(value, jax.ShapeDtypeStruct):
        raise InputError(
            f"{name} of the port holds no values (ShapeDtypeStruct): no weight was loaded into it"
        )
    return int(np.size(value))


def own_variables(module: nnx.Module) -> dict[str, nnx.Variable[Any]]:
    """Variables of a module by name, without those of modules inside it."""
    if isinstance(module, Part):
        return module.variables()
    held = module.held if isinstance(module, Functional) else module
    return {name: one for name, one in vars(held).items() if isinstance(one, nnx.Variable)}


def named_tensors(root: nnx.Module) -> list[Tensor]:
    """Parameters and other variables that hold an array; random state is left out."""
    found = []
    for full_name, variable in _nodes(root):
        if not isinstance(variable, nnx.Variable) or isinstance(variable, nnx.RngState):
            continue
        value = variable.get_value()
        random = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        if isinstance(value, (jax.Array, np.ndarray)) and not random:
            path, _, name = full_name.rpartition(".")
            buffer = not isinstance(variable, nnx.Param)
            read = functools.partial(_host, value)
            found.append(Tensor(path, name, value.shape, read, buffer, id(variable)))
    return found


def _host(array: Any) -> Any:
    # an array on another device keeps the copy that is made of it on the host: not of all weights
    on_host = isinstance(array, np.ndarray) or array.platform() == "cpu"
    return np.asarray(array if on_host else array.copy())


def arrays(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with JAX arrays for NumPy arrays."""

    def own(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        return jnp.asarray(array.astype(array.dtype.newbyteorder("="), copy=False))

    given: tuple[tuple[Any, ...], dict[str, Any]] = mapped(own, (args, dict(kwargs)))
    return given


def aliased(array: np.ndarray[Any, Any]) -> jax.Array:
    """A JAX array in the memory of `array`, where it can be: nobody may write to that any more."""
    if not jax.sharding.get_abstract_mesh().empty:
        return jnp.asarray(array)  # placed as the arguments of the recorded run were
    own: jax.Array = jax.device_put(array, may_alias=True)
    return own


def target(module: nnx.Module, method: Method) -> Callable[..., Any]:
    """The method of that name, or a callable with the module in front; arguments have names."""
    if not isinstance(method, str):
        return functools.partial(method, module)
    if isinstance(module, Part) or (isinstance(module, Functional) and method == "__call__"):
        return module.function()
    bound: Callable[..., Any] = getattr(module, method)
    return bound


class _RecordingObserver(Observer):
    """Turns calls into recorded ones, at once or from inside a compiled program."""

    def __init__(self, store: Store, root: str, without_taps: Collection[str]) -> None:
        super().__init__(root)
        self.recorder = Recorder()
        self.hidden: set[str] = set()
        self.untapped: set[str] = set()
        self._without_taps = without_taps
        self._store = store
        self._outside = trace_state()

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        # ordered callbacks, which keep calls in their order, cannot be vmapped or differentiated
        if _transformed():
            self.hidden.add(path)
            return function(*args, **kwargs)
        self.begin(path, flatten(bind(function, args, kwargs)))
        try:
            output = function(*args, **kwargs)
        except BaseException:
            self._emit(self.recorder.abort, flatten(()))
            raise
        self.end(kind, "__call__", flatten(output))
        return output

    def begin(self, path: str, given: Flat) -> None:
        # Objects passed along under jit (a module, random streams, a key) are or hold tracers: not
        # to be kept.
        stateful = any(isinstance(value, STATEFUL) for _, value in given.statics)
        kept = not (stateful and self._tracing())
        arguments = given.skeleton if kept else None
        if arguments is not None and not self._tracing():
            arguments = with_statics(arguments, as_given)

        def event(*values: Any) -> None:
            self.recorder.begin(path, self._leaves(given, values), arguments)

        self._emit(event, given)

    def end(self, kind: str, method: str, output: Flat) -> None:
        traced = self._tracing()

        def event(*values: Any) -> None:
            self.recorder.end(kind, method, self._leaves(output, values), traced=traced)

        self._emit(event, output)

    def tapped(self, running: str, path: str, value: Any) -> Any:
        if running in self._without_taps:
            return value
        if self._tracing():
            self.untapped.add(path)
            return value
        jax.effects_barrier()
        given = flatten(value)
        self.recorder.point(path, self._leaves(given, tuple(array for _, array in given.arrays)))
        return value

    def _tracing(self) -> bool:
        return bool(trace_state() != self._outside)

    def _emit(self, event: Callable[..., None], flat: Flat) -> None:
        values = [value for _, value in flat.arrays]
        if self._tracing():
            io_callback(event, None, *values, ordered=True)
        else:
            jax.effects_barrier()  # events of compiled programs that ran before this one
            event(*values)

    def _leaves(self, flat: Flat, values: tuple[Any, ...]) -> tuple[Leaf, ...]:
        return (
            *(Leaf(name, value=static) for name, static in flat.statics),
            *(
                Leaf(name, self._store.put(np.asarray(value)))
                for (name, _), value in zip(flat.arrays, values, strict=True)
            ),
        )


def _transformed() -> bool:
    """True inside of `jax.vmap`, `jax.grad` and their kin, in a program there too."""
    trace: Any = find_top_trace(())
    while trace is not None:
        if type(trace).__name__ in ("BatchTrace", "JVPTrace", "LinearizeTrace"):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def trace_state() -> Any:
    """The JAX transformation that runs, to be compared with that of another moment."""
    return get_opaque_trace_state(convention="nnx")
