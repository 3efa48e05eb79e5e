"""The noise floor: how far PyTorch itself is from float64 on the same inputs.

    R = rms(port - ref64) / max(rms(ref - ref64), 4u * rms(ref64))

R near 1 means: as accurate as PyTorch.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped

from parity.capture_torch import Method, invoke, target, to_numpy
from parity.metrics import distance, ratio, triangle, unit_roundoff
from parity.recorder import unbind
from parity.records import Call, Exclusive
from parity.store import Store
from parity.tree import flatten, rebuild

Array = Shaped[np.ndarray, "..."]

NOT_IN_FLOAT64 = "not measured: the reference does not run in float64"


def score(ref: Array, port: Array, wide: Array | None = None) -> Exclusive:
    """Distance of `port` from `ref`, and R if the float64 result `wide` is given."""
    if ref.shape != port.shape:
        inf, problem = float("inf"), f"shape {port.shape} instead of {ref.shape}"
        return Exclusive(inf, inf, 0, problem=problem)
    mae, rel_l2, nonfinite = distance(ref, port)
    if wide is None or wide.shape != ref.shape or nonfinite or ref.dtype.kind not in "fcV":
        return Exclusive(mae, rel_l2, nonfinite)
    ours, theirs, norm = triangle(ref, port, wide)
    # the reference's type: a port that computes in a coarser one is not as accurate
    floor = max(theirs, 4 * unit_roundoff(ref.dtype) * norm)
    return Exclusive(
        mae,
        rel_l2,
        nonfinite,
        floor_rel_l2=ratio(theirs, norm),
        r=ratio(ours, floor),
        moved=theirs == 0.0,
    )


def bounded(rel_l2: float, limit: float, dtype: np.dtype[Any]) -> bool:
    """Whether the relative distance from the reference alone shows that R <= `limit`.

    rms(port - ref64) <= rms(port - ref) + rms(ref - ref64), and the denominator of R is at least
    each of rms(ref - ref64) and 4u rms(ref64), so R <= 1 + rel_l2 (1 + 1/4u).
    """
    unit = unit_roundoff(dtype)
    return unit > 0 and rel_l2 * (1 + 1 / (4 * unit)) + 1 <= limit


def reference64(
    module: torch.nn.Module, method: Method, call: Call, store: Store
) -> Mapping[str, Array]:
    """Outputs of a float64 copy of `module` on the recorded inputs of `call`, in the port's layout.

    Holds a float64 copy of this module for the time of the call.
    """
    if call.arguments is None:
        raise ValueError(f"the arguments of {call.path!r} were not recorded")
    values = [widen(store.get(leaf.buffer), leaf.moved) for leaf in call.inputs if leaf.buffer]
    with torch.no_grad():
        wide = copy.deepcopy(module).double()
        args, kwargs = unbind(target(wide, method), rebuild(call.arguments, values))
        output = invoke(wide, method, args, kwargs)
    moved = {leaf.name: leaf.moved for leaf in call.outputs}
    return {
        name: to_array(value, moved.get(name, False))
        for name, value in flatten(output).arrays
        if isinstance(value, torch.Tensor)
    }


def widen(array: Array, moved: bool) -> torch.Tensor:
    """A recorded array as a tensor in PyTorch's layout, floats in float64."""
    # NumPy knows bfloat16 only by name: it widens what torch would refuse
    if array.dtype.kind not in "biu":
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    tensor = torch.from_numpy(array)
    return tensor.movedim(-1, 1) if moved else tensor


def to_array(tensor: torch.Tensor, moved: bool) -> Array:
    """A tensor as an array in the port's layout."""
    return to_numpy(tensor.movedim(1, -1) if moved else tensor)
