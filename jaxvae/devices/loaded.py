"""Programs that were compiled elsewhere and loaded from a file, found by what they are given.

JAX finds a compiled program by its arguments: shapes, types, devices, and the structure that they
are held in, with every static attribute of every module. So are these, and what was loaded for one
model serves every other that is like it.
"""

from collections.abc import Callable
from typing import Any

import jax

Key = tuple[Any, ...]

_programs: dict[Key, jax.stages.Compiled] = {}


def key_of(step: Callable[..., Any], *arguments: Any) -> Key:
    """Return what a program is found by: `arguments` hold arrays, or their shapes with devices."""
    leaves, structure = jax.tree.flatten(arguments)
    devices = frozenset().union(*(leaf.sharding.device_set for leaf in leaves))
    return step, structure, devices, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def add_loaded(key: Key, program: jax.stages.Compiled) -> None:
    """From now on run this program; it takes the place of one that was loaded before."""
    _programs[key] = program


def find_loaded(step: Callable[..., Any], *arguments: Any) -> jax.stages.Compiled | None:
    """Return the program for these arguments, or None; also inside a caller's transformation.

    Instead of an array there may be its shape, with the devices.
    """
    # Looking up takes a flattening of the model: not where nothing was loaded.
    if not _programs:
        return None
    leaves = jax.tree.leaves(arguments)
    # NumPy arrays lie on no device; what is traced is part of another program.
    placed = (jax.Array, jax.ShapeDtypeStruct)
    if any(isinstance(x, jax.core.Tracer) or not isinstance(x, placed) for x in leaves):
        return None
    return _programs.get(key_of(step, *arguments))
