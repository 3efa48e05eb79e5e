"""Inclusive error: every module of the port is fed the reference's inputs for each of its calls."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx
from jaxtyping import Shaped

from parity import capture_torch, noise
from parity.capture_nnx import target
from parity.measure import Key, comparable, read
from parity.metrics import distance
from parity.progress import Progress
from parity.recorder import unbind
from parity.records import Call, Inclusive, LeafMatch, Match
from parity.store import Store
from parity.tree import Skeleton, flatten, rebuild

Array = Shaped[np.ndarray, "..."]
Floor = Callable[[str], float] | None
"""The limit on R for a module kind, to decide where the float64 run is needed; `None`: always."""


def measure_inclusive(
    matches: Sequence[Match],
    torch_modules: Mapping[str, torch.nn.Module],
    nnx_modules: Mapping[str, nnx.Module],
    torch_method: capture_torch.Method,
    store: Store,
    limit: Floor,
    progress: Progress,
) -> Mapping[Key, Inclusive]:
    """Run each matched call of the port on the reference's inputs and measure its outputs.

    A call that received these very inputs already is not run again. A call that the port made
    under `jit` is compiled, one made eagerly is run eagerly. Where the relative error does not
    bound R under `limit` of the module's kind, the reference is run in float64 to measure it.
    `torch_method` is what was called on the root.
    """
    progress.stage("inclusive error", len(matches))
    found: dict[Key, Inclusive] = {}
    try:
        for match in matches:
            found.update(
                _one(
                    match,
                    torch_modules[match.ref.path],
                    nnx_modules[match.port.path],
                    torch_method if match.ref.parent == -1 else "__call__",
                    store,
                    limit,
                )
            )
            progress.advance()
    finally:
        _compiled.clear_cache()  # type: ignore[attr-defined]  # jax's stub lacks it
    return found


def _one(
    match: Match,
    torch_module: torch.nn.Module,
    nnx_module: nnx.Module,
    torch_method: capture_torch.Method,
    store: Store,
    limit: Floor,
) -> dict[Key, Inclusive]:
    leaves = {leaf.ref.name: leaf for leaf in match.outputs if comparable(leaf)}
    key = match.ref.order
    try:
        outputs = _outputs(match, nnx_module, store)
    except NotRepeatable as error:
        nan = float("nan")
        return {(key, name): Inclusive(nan, nan, 0, problem=str(error)) for name in leaves}
    errors: dict[str, Inclusive] = {}
    for name, leaf in leaves.items():
        ref, port = _both(leaf, outputs, store)
        if ref.shape != port.shape:
            inf, problem = float("inf"), f"shape {port.shape} instead of {ref.shape}"
            errors[name] = Inclusive(inf, inf, 0, problem=problem)
            continue
        errors[name] = Inclusive(*distance(ref, port))
    if any(_undecided(errors[name], leaf, match.ref.kind, limit) for name, leaf in leaves.items()):
        wide = noise.reference64(torch_module, torch_method, match.ref, store)
        for name, leaf in leaves.items():
            if name in wide and not errors[name].problem and _floating(leaf):
                ref, port = _both(leaf, outputs, store)
                ref64 = np.moveaxis(wide[name], -1, 1) if leaf.undo else wide[name]
                r, floor = noise.score(ref, port, np.ascontiguousarray(ref64))
                e = errors[name]
                errors[name] = Inclusive(e.mae, e.rel_l2, e.nonfinite, floor_rel_l2=floor, r=r)
    return {(key, name): error for name, error in errors.items()}


class NotRepeatable(Exception):
    """A call whose arguments cannot be made again."""


def _outputs(match: Match, module: nnx.Module, store: Store) -> Mapping[str, Array]:
    """The port's outputs by leaf name, given the reference's inputs."""
    call = match.port
    forced: dict[str, LeafMatch] = {
        leaf.port.name: leaf for leaf in match.inputs if leaf.port and comparable(leaf)
    }
    same = all(
        not leaf.undo and leaf.ref.buffer == leaf.port.buffer
        for leaf in forced.values()
        if leaf.port
    )
    if same:
        return {leaf.name: store.get(leaf.buffer) for leaf in call.outputs if leaf.buffer}
    if call.arguments is None:
        raise NotRepeatable("its arguments hold a module or random streams under jit")
    values = []
    for leaf in call.inputs:
        if leaf.buffer:
            match_ = forced.get(leaf.name)
            buffers = comparable(match_) if match_ else None
            values.append(
                read(store, buffers[0], match_.undo)
                if match_ and buffers
                else store.get(leaf.buffer)
            )
    outputs = rerun(module, call, values)
    return {name: np.asarray(value) for name, value in outputs.items()}


def rerun(module: nnx.Module, call: Call, values: Sequence[Array]) -> Mapping[str, Any]:
    """Make a recorded call again with other arrays; compiled if it was traced then."""
    assert call.arguments is not None
    import os

    if not os.environ.get("EAGER") and call.traced and _hashable(call.arguments):
        graph, state = nnx.split(module)
        outputs: Mapping[str, Any] = _compiled(graph, call.arguments, state, list(values))
        return outputs
    return _call(module, call.arguments, [jax.numpy.asarray(value) for value in values])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(graph: Any, arguments: Skeleton, state: Any, values: list[Any]) -> dict[str, Any]:
    # Modules of the same structure share one program, whatever their weights.
    return _call(nnx.merge(graph, state), arguments, values)


def _call(module: nnx.Module, arguments: Skeleton, values: Sequence[Any]) -> dict[str, Any]:
    function = target(module, "__call__")
    args, kwargs = unbind(function, rebuild(arguments, values))
    return dict(flatten(function(*args, **kwargs)).arrays)


def _hashable(arguments: Skeleton) -> bool:
    try:
        hash(arguments)
    except TypeError:
        return False
    return True


def _both(leaf: LeafMatch, outputs: Mapping[str, Array], store: Store) -> tuple[Array, Array]:
    assert leaf.ref.buffer is not None
    assert leaf.port is not None
    return read(store, leaf.ref.buffer, leaf.undo), outputs[leaf.port.name]


def _floating(leaf: LeafMatch) -> bool:
    return bool(leaf.ref.buffer and leaf.ref.buffer.dtype.kind in "fcV")


def _undecided(error: Inclusive, leaf: LeafMatch, kind: str, limit: Floor) -> bool:
    if error.problem or error.nonfinite or not _floating(leaf) or not np.isfinite(error.rel_l2):
        return False
    assert leaf.ref.buffer is not None
    return limit is None or not noise.bounded(error.rel_l2, limit(kind), leaf.ref.buffer.dtype)
