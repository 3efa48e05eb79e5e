"""The compiled run: the port as it is shipped, without recording, beside its recorded outputs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.capture.nnx import Method, aliased, target
from parity.capture.recorder import Subtree, unbind
from parity.capture.restore_nnx import kept_port
from parity.core.arrays import Array
from parity.core.calls import Call, Match
from parity.core.exceptions import first_line
from parity.core.metrics import distance, ratio, unit_roundoff
from parity.core.store import Store
from parity.core.tree import flatten, rebuild
from parity.core.verdicts import COMPILED, Fault, Row
from parity.force.common import NotMeasured, Sides
from parity.measure.free import Key

FACTOR = 10
"""How many times the noise floor two runs of one port may differ, as R may between two models."""


@dataclass(frozen=True)
class Compiled:
    """A method of the port as one program of its state and of the arrays that it is given."""

    method: Method

    def __call__(self, module: nnx.Module, *args: Any, **kwargs: Any) -> Any:
        """Trace, compile and run it anew."""
        given = flatten((args, kwargs))
        returned = []
        # what is no variable may be a compiled function, which is no argument of a program
        parts: Any = nnx.split(module, nnx.Variable, ...)
        graph, variables, rest = parts

        def program(variables: Any, values: list[Any]) -> list[Any]:
            args, kwargs = rebuild(given.skeleton, values)
            called = nnx.merge(graph, variables, rest)
            output = flatten(target(called, self.method)(*args, **kwargs))
            returned.append(output.skeleton)
            return [value for _, value in output.arrays]

        values = jax.jit(program)(variables, [value for _, value in given.arrays])
        return rebuild(returned[-1], values)


@dataclass(frozen=True)
class CompiledRun:
    """The result of the run as a fact; `note` is the warning if there is none.

    `failure` says how it differs from the recorded one, and `first` is the port's first call that
    does.
    """

    fact: str
    note: str = ""
    failure: str = ""
    first: Call | None = None

    def failed(self, row: Row, matches: Sequence[Match]) -> tuple[Row, Fault]:
        """The row that fails, made from that of the root, and the fault at the first call."""
        case = row.case + COMPILED
        row = replace(
            row, case=case, verdict="FAIL", reason=self.failure, metrics=None, inclusive=None,
            exclusive=None, gain=math.nan, grade="", child_inputs=0.0, child_r=0.0,
        )  # fmt: skip
        order = self.first.order if self.first else -1
        first = next((m.ref for m in matches if m.port.order == order), matches[-1].ref)
        cause = "glue" if any(match.parent == first.order for match in matches) else "unknown"
        place = first.path, first.number, row.leaf, case, first.kind
        return row, Fault(*place, magnitude=self.failure, cause=cause, hint=HINT)


HINT = "look for code that does something else inside a program: what it asks of values and types"


def compare_compiled(
    match: Match,
    calls: Sequence[Call],
    shipped: Method,
    sides: Sides,
    rounding: Mapping[Key, float],
    store: Store,
) -> CompiledRun:
    """Run `shipped` on what the root call of the port was given, and compare the outputs.

    `calls` are all that the port made when it was recorded. `rounding` holds relative errors of
    the root's outputs that are nothing but rounding. Where these do not resolve it, the reference
    runs in float64 for the noise floor.
    """
    call, module = match.port, sides.module(match)
    assert call.arguments is not None  # the root is called outside of any program
    given = [store.get(leaf.buffer) for leaf in call.inputs if leaf.buffer]
    arguments = rebuild(call.arguments, list(map(aliased, given)))
    args, kwargs = unbind(target(module, sides.nnx_method), arguments)
    try:
        objects = [value for _, value in flatten(arguments).statics]
        with kept_port(module, *objects), jax.disable_jit(False):
            output = flatten(target(module, shipped)(*args, **kwargs))
    except Exception as error:
        reason = first_line(error)
        if isinstance(shipped, Compiled):  # Python that looks at values is no mistake
            text = f"not compared: the port cannot be compiled ({reason})"
            return CompiledRun(text, text)
        text = f"the port as it is shipped fails ({reason})"
        return CompiledRun(text, failure=text)
    errors = _differences(call, {name: np.asarray(x) for name, x in output.arrays}, store)
    fact = f"rel_l2 {max(errors.values(), default=0.0):.1e} from the recorded output"
    noise, why = _noise(match, rounding), ""
    if _worst(errors, noise)[0] > FACTOR:
        try:
            noise = _noise(match, _floors(match, sides, store))
        except NotMeasured as error:
            why = f" at least ({error})"
    size, name = _worst(errors, noise)
    if size <= FACTOR:
        return CompiledRun(fact)
    # once more, watched: the program's calls are not those that were recorded
    inside = None if len(calls) > 1 else ()
    with jax.disable_jit(False):
        again = capture_nnx.record(
            module, shipped, args, kwargs, store=store, subtree=Subtree(call.path, inside)
        )
    first = _first_difference(calls, again.calls, FACTOR * noise[name], store)
    where = f"; the first call that differs is `{first.path}`, call {first.number}" if first else ""
    text = (
        f"the uncaptured, jitted port returns something else: rel_l2 {errors[name]:.1e}"
        f"{f' in output `{name}`' if name else ''}, and the noise is {noise[name]:.1e}{why}{where}"
    )
    return CompiledRun(fact, failure=text, first=first)


def _differences(call: Call, others: Mapping[str, Array], store: Store) -> dict[str, float]:
    """Relative distance of each output from the recorded one; infinite if it has another form."""
    found = {}
    for leaf in call.outputs:
        if leaf.buffer is not None:
            plain, other = store.get(leaf.buffer), others.get(leaf.name)
            same = other is not None and (other.shape, other.dtype) == (plain.shape, plain.dtype)
            error = distance(plain, other)[1] if same and other is not None else float("inf")
            found[leaf.name] = error if error == error else 0.0  # no finite entry, alike on both
    return found


def _noise(match: Match, errors: Mapping[Key, float]) -> dict[str, float]:
    """By output leaf of the port: the error of its counterpart, at least four roundings."""
    arrays = {leaf.name: leaf.buffer for leaf in match.port.outputs if leaf.buffer}
    noise = {name: 4 * unit_roundoff(buffer.dtype) for name, buffer in arrays.items()}
    for leaf in match.outputs:
        if leaf.port and leaf.port.name in noise:
            error = errors.get((match.ref.order, leaf.ref.name), 0.0)
            noise[leaf.port.name] = max(noise[leaf.port.name], error)
    return noise


def _worst(errors: Mapping[str, float], noise: Mapping[str, float]) -> tuple[float, str]:
    """The largest error in units of the noise, and its leaf; of exact values any is infinite."""
    sizes = [(ratio(error, noise[name]), name) for name, error in errors.items()]
    return max(sizes, default=(0.0, ""))


def _floors(match: Match, sides: Sides, store: Store) -> dict[Key, float]:
    """Relative distance of the reference's outputs from its own float64 run."""
    wide = sides.reference.whole(match.ref, store)
    return {
        (match.ref.order, leaf.name): distance(wide[leaf.name], store.get(leaf.buffer))[1]
        for leaf in match.ref.outputs
        if leaf.buffer and leaf.buffer.dtype.kind in "fcV" and leaf.name in wide
    }


def _first_difference(
    calls: Sequence[Call], others: Sequence[Call], limit: float, store: Store
) -> Call | None:
    """The first call that returned something else the second time."""
    again = {(call.path, call.number): call for call in others}
    for call in calls:
        other = again.get((call.path, call.number))
        if other is not None and call.parent != -1:
            outputs = {leaf.name: store.get(leaf.buffer) for leaf in other.outputs if leaf.buffer}
            if max(_differences(call, outputs, store).values(), default=0.0) > limit:
                return call
    return None
