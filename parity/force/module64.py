"""One module of the reference in float64, on the inputs of one recorded call."""

import copy
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Shaped

from parity.capture.recorder import unbind
from parity.capture.torch import Method, invoke, target, to_numpy
from parity.core.calls import Call
from parity.core.store import Store
from parity.core.tree import flatten, rebuild

Array = Shaped[np.ndarray, "..."]


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
