"""The call of one fault, taken out of a comparison so that it can be made again by itself."""

import sys
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Shaped

from parity.capture.linen import Part
from parity.capture.nnx import Method, target
from parity.capture.recorder import unbind
from parity.core.calls import Match
from parity.core.pair import PairOptions
from parity.core.repro import Repro
from parity.core.tree import rebuild
from parity.core.verdicts import Fault
from parity.diagnose.case_record import CaseRecord, record_of
from parity.force.common import reference, values
from parity.run.protocols import Context

Array = Shaped[np.ndarray, "..."]

PLAIN = (type(None), bool, int, float, str)
"""Arguments besides arrays that can be written into a script."""


CONFIGURED = ("jax_enable_x64", "jax_default_matmul_precision")
"""Settings that a script takes over, beside the device."""


class Unshowable(Exception):
    """The call cannot be written down; the message says why."""


def take(
    fault: Fault, records: Sequence[CaseRecord], context: Context, making: Callable[[], str]
) -> Repro:
    """The call of a fault, of a port that runs and that the source `making()` makes."""
    live: Any = context.reference  # both sides run: of no others is one asked for
    port: Any = context.port
    root, store = port.root, context.store
    record, place = record_of(fault.path, fault.call, records), (fault.path, fault.call)
    match = next(m for m in record.matches if (m.ref.path, m.ref.number) == place)
    if match.port.tapped:
        return Repro(fault, problem="it is at a tap, and a tap cannot be called by itself")
    method = record.sides.nnx_method if match.ref.parent == -1 else "__call__"
    try:
        made = making()
        call, imports = _source(match, root, record.sides.module(match), method)
    except Unshowable as error:
        return Repro(fault, problem=str(error))
    names = [leaf.name for leaf in match.port.inputs if leaf.buffer]
    expected = {
        f"output.{leaf.port.name}".rstrip("."): reference(leaf, store)
        for leaf in match.outputs
        if leaf.port and leaf.port.buffer and leaf.ref.buffer
    }
    if not expected:
        return Repro(fault, problem="the port returns nothing that the reference does")
    return Repro(
        fault,
        call,
        imports,
        # copies: a mapping would keep the whole file of the comparison
        given=_copied(dict(zip(names, values(match, store), strict=True))),
        expected=_copied(expected),
        weights=live.weights_of(fault.path),
        making=made,
        settings=_settings(),
    )


def _settings() -> tuple[str, ...]:
    """Lines for what of JAX's configuration decides where and how exactly the port computes."""
    values = {name: getattr(jax.config, name) for name in CONFIGURED}
    lines = [f'jax.config.update("{name}", {value!r})' for name, value in values.items() if value]
    device = getattr(jax.config, "jax_default_device")  # noqa: B009
    if isinstance(device, jax.Device):
        number = jax.devices(device.platform).index(device)
        place = f"jax.devices({device.platform!r})[{number}]"
        lines.append(f'jax.config.update("jax_default_device", {place})')
    return tuple(lines)


def made_by_pair(options: PairOptions, seed: int) -> str:
    """How a `parity.Pair` makes its port; raises Unshowable."""
    try:
        written = _text(dict(options))
    except Unshowable as error:
        raise Unshowable(f"of an option of the pair: {error}") from error
    return (
        f"options = {written}\n"
        f"reference = make.make_torch(options, {seed})\n"
        "port = make.make_nnx(options, reference)"
    )


def made_by_function(seed: int) -> str:
    """How the port is made by a function that `parity compare` takes.

    `seed` is what torch's stream begins at when the function is called.
    """
    return (
        f"torch.manual_seed({seed})\nmade = make()\n"
        'port = made["nnx_module"] if isinstance(made, Mapping) else made[1]'
    )


def _copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def _source(match: Match, root: nnx.Module, module: nnx.Module, method: Method) -> tuple[str, str]:
    """The call as an expression, and what must be imported for it."""
    if match.port.arguments is None:
        raise Unshowable("its arguments hold a module or random streams under jit")
    if isinstance(module, Part):
        raise Unshowable("it is a module of Linen, which there is only while it is called")
    names = [_Source(f"given[{leaf.name!r}]") for leaf in match.port.inputs if leaf.buffer]
    args, kwargs = unbind(target(module, method), rebuild(match.port.arguments, names))
    words = [_text(value) for value in args]
    words += [f"{name}={_text(kwargs.pop(name))}" for name in list(kwargs) if _spelled(name)]
    words += [f"**{_text(kwargs)}"] if kwargs else []
    owner = _access(root, match.port.path)
    if not isinstance(method, str):
        return f"method({', '.join([owner, *words])})", _import(method)
    called = owner if method == "__call__" else _attribute(owner, method)
    return f"{called}({', '.join(words)})", ""


def _spelled(name: str) -> bool:
    """True for a name that source may have as it is, and that means the same there."""
    return name.isascii() and name.isidentifier() and not iskeyword(name)


def _attribute(owner: str, name: str) -> str:
    return f"{owner}.{name}" if _spelled(name) else f"getattr({owner}, {name!r})"


class _Source(str):
    """Text that is source already."""

    __repr__ = str.__str__


def _text(value: Any) -> str:
    """A value as source."""
    if type(value) is float and not np.isfinite(value):
        return f'float("{value}")'
    if type(value) in (*PLAIN, _Source):
        return repr(value)
    if type(value) in (list, tuple):
        return repr(type(value)(_Source(_text(item)) for item in value))
    if type(value) is dict:
        return repr({_Source(_text(key)): _Source(_text(item)) for key, item in value.items()})
    raise Unshowable(f"it takes a {type(value).__name__}, which a script cannot spell")


def _access(root: nnx.Module, path: str) -> str:
    """Expression for a module of `port`."""
    value: Any = root
    text = "port"
    for name in path.split(".") if path else []:
        if isinstance(value, (list, tuple, nnx.List)) and name.isdecimal():
            value, text = value[int(name)], f"{text}[{name}]"
        elif isinstance(value, (dict, nnx.Dict)) and name in map(str, value):
            key = next(key for key in value if str(key) == name)
            value, text = value[key], f"{text}[{key!r}]"
        elif hasattr(value, name):
            value, text = getattr(value, name), _attribute(text, name)
        else:
            raise Unshowable(f"no expression leads from `{text}` to `{path}`")
    return text


def _import(function: Callable[..., Any]) -> str:
    home, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    found = getattr(sys.modules.get(home), name, None) is function
    if not found or home == "__main__" or not all(map(_spelled, [*home.split("."), name])):
        raise Unshowable("what was called on the port is no function that can be imported")
    return f"from {home} import {name} as method"
