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
from parity.metrics import ratio, rms_distance, unit_roundoff
from parity.recorder import unbind
from parity.records import Call
from parity.store import Store
from parity.tree import flatten, rebuild

Array = Shaped[np.ndarray, "..."]


def reference64(
    module: torch.nn.Module, method: Method, call: Call, store: Store
) -> Mapping[str, Array]:
    """Outputs of a float64 copy of `module` on the recorded inputs of `call`, in the port's layout.

    Holds a float64 copy of this module for the time of the call.
    """
    if call.arguments is None:
        raise ValueError(f"the arguments of {call.path!r} were not recorded")
    values = [_double(store.get(leaf.buffer), leaf.moved) for leaf in call.inputs if leaf.buffer]
    wide = copy.deepcopy(module).double()
    args, kwargs = unbind(target(wide, method), rebuild(call.arguments, values))
    with torch.no_grad():
        output = invoke(wide, method, args, kwargs)
    moved = {leaf.name: leaf.moved for leaf in call.outputs}
    return {
        name: to_numpy(value.movedim(1, -1) if moved.get(name) else value)
        for name, value in flatten(output).arrays
        if isinstance(value, torch.Tensor)
    }


def score(ref: Array, port: Array, ref64: Array) -> tuple[float, float]:
    """(R, relative distance of the reference from float64)."""
    ours, norm = rms_distance(ref64, port)
    theirs, _ = rms_distance(ref64, ref)
    floor = max(theirs, 4 * unit_roundoff(port.dtype) * norm)
    return ratio(ours, floor), ratio(theirs, norm)


def bounded(rel_l2: float, limit: float, dtype: np.dtype[Any]) -> bool:
    """Whether the relative distance from the reference alone shows that R <= `limit`.

    rms(port - ref64) <= rms(port - ref) + rms(ref - ref64), and the denominator of R is at least
    each of rms(ref - ref64) and 4u rms(ref64), so R <= 1 + rel_l2 (1 + 1/4u).
    """
    unit = unit_roundoff(dtype)
    return unit > 0 and rel_l2 * (1 + 1 / (4 * unit)) + 1 <= limit


def _double(array: Array, moved: bool) -> torch.Tensor:
    # NumPy knows bfloat16 only by name: it widens what torch would refuse
    wide = array if array.dtype.kind in "biuc" else array.astype(np.float64)
    tensor = torch.from_numpy(wide)
    return tensor.movedim(-1, 1) if moved else tensor
