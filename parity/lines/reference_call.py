"""The reference's side of a call, operation by operation, in float64."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import torch

from parity.capture.torch import target
from parity.core.calls import Call, Match
from parity.force.common import Recording, within
from parity.force.float64 import TorchModules
from parity.force.torch import Mode, force_reference
from parity.lines.call import Scene, Traced
from parity.lines.operations import Result
from parity.lines.source import defined
from parity.lines.torch_operations import Watched

Around = Callable[[Watched], Mode]
"""Makes of the mode that sees operations one that does more."""


def trace_reference(
    scene: Scene,
    match: Match,
    opened: Collection[int] = (),
    around: Around | None = None,
) -> Traced:
    """The reference's side of a call, in float64; calls inside that are `opened` run too.

    Raises:
        RuntimeError: it does not run in float64, or not by itself.
    """
    reference = scene.sides.reference
    assert isinstance(reference, TorchModules)
    module, method = reference.of(match.ref)
    traced, own = Traced(), match.ref.order
    watched = Watched(traced.program, _narrow(match))
    inside = [one for one in scene.inside(match) if one.ref.order not in opened]
    recording = Recording(inside, within(scene.calls[0], own), scene.store)

    def heard(one: Match, passed: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        order, leaves, tensors = one.ref.order, one.inputs, passed
        if one.ref.tapped or order == own:
            leaves, tensors = one.outputs, outputs
        if order == own:
            leads, frames = "", defined(target(module, method))
        else:
            leads, frames = one.ref.path, watched.here()
        traced.sites[order] = frames
        for leaf in leaves:
            tensor = tensors.get(leaf.ref.name)
            if tensor is not None:
                number = watched.number(tensor)
                traced.results[order, leaf.ref.name] = Result(number, leads, frames)

    # it is entered, and made inactive, as a mode of functions is
    mode = cast(Mode, watched) if around is None else around(watched)
    problem = force_reference(module, method, recording, heard, {own}, mode)
    if problem:
        raise RuntimeError(problem)
    return traced


_TYPES = ("float64", "float32", "bfloat16", "float16")
"""Types of numbers, the finest first."""


def _narrow(match: Match) -> torch.dtype:
    """The type that both sides compute in: the coarser one of the finest of each."""
    found: torch.dtype = getattr(torch, _TYPES[max(_finest(match.ref), _finest(match.port))])
    return found


def _finest(call: Call) -> int:
    kinds = {str(leaf.buffer.dtype) for leaf in (*call.inputs, *call.outputs) if leaf.buffer}
    return next((at for at, name in enumerate(_TYPES) if name in kinds), 1)
