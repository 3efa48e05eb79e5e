"""The error that hardware with coarser products would add to a port.

The port runs again as on such hardware. What it makes of the same inputs then is measured against
what it makes of them in float32, not against the reference: the difference is the hardware's.
"""

import numpy as np

from parity.core.arrays import Array
from parity.core.calls import Match
from parity.core.measurements import Emulation
from parity.core.metrics import distance
from parity.core.store import Store
from parity.core.tree import flatten
from parity.extras.emulation import emulated
from parity.force.common import Sides, by_port_leaf
from parity.force.nnx import repeat
from parity.measure.free import Free


def measure_emulated(
    mode: str, case: str, root: Match, sides: Sides, free: Free, store: Store
) -> Emulation:
    """Run the port so, and say of each output what was added, and the port's error without it."""
    given = [store.get(leaf.buffer) for leaf in root.port.inputs if leaf.buffer]
    module = sides.nnx_modules[root.port.path]
    with emulated(mode):
        output = flatten(repeat(module, sides.nnx_method, root.port, given))
        arrays = {name: np.asarray(value) for name, value in output.arrays}
    found = {}
    for name, leaf in by_port_leaf(root.outputs).items():
        key = root.ref.order, leaf.ref.name
        if key in free.errors and leaf.port and leaf.port.buffer and name in arrays:
            added = _distance(store.get(leaf.port.buffer), arrays[name])
            found[leaf.ref.name] = (added, free.errors[key].rel_l2)
    return Emulation(mode, case, root.ref.path, found)


def _distance(exact: Array, rounded: Array) -> float:
    """Relative L2, infinite between shapes; 0 where no entry is finite on either side."""
    if exact.shape != rounded.shape:
        return float("inf")
    error = distance(exact, rounded)[1]
    return error if error == error else 0.0
