"""The called module's arguments on both sides, and what it returned."""

from typing import Any

import numpy as np

from parity.align.leaves import match_inputs, same_value
from parity.align.readings import Values, orders_given
from parity.core.arrays import read
from parity.core.calls import Call, Leaf, LeafMatch
from parity.core.exceptions import InputError
from parity.core.problems import not_measured
from parity.core.store import Store


def check_inputs(ref: Call, port: Call, store: Store) -> None:
    """Refuse arguments of the port that are not the reference's after layout."""
    orders = orders_given(ref, port, store)
    other, lacking = (not_measured(text) for text in ("other values", "no counterpart"))
    found = {
        leaf.ref.name: None if _equal(leaf, store) else leaf.problem or other
        for leaf in match_inputs(ref.inputs, port.inputs, Values(store, orders))
    }
    plain = {leaf.name: leaf.value for leaf in port.inputs if leaf.buffer is None}
    for leaf in ref.inputs:
        if leaf.buffer is not None:
            problem = found.get(leaf.name, lacking)
        else:
            value = plain.get(leaf.name, leaf.value)
            text = f"{value!r} for {leaf.value!r}"
            problem = None if same_value(leaf.value, value) else not_measured(text)
        if problem is not None:
            raise InputError(
                f"nnx_args are not torch_args after layout: argument {leaf.name!r} has {problem}; "
                "leave nnx_args out, or say how to read the axes with layout="
            )


def _equal(leaf: LeafMatch, store: Store) -> bool:
    if leaf.problem or leaf.port is None or leaf.ref.buffer is None or leaf.port.buffer is None:
        return False
    if not leaf.reading and leaf.ref.buffer == leaf.port.buffer:
        return True
    ref, port = read(store, leaf.ref.buffer, leaf.reading), store.get(leaf.port.buffer)
    # JAX has no 64-bit types unless asked for: the values count
    return np.array_equal(ref.astype(port.dtype), port, equal_nan=port.dtype.kind in "fc")


def returns_the_same(ref: Call, port: Call, store: Store) -> bool:
    """True if each array that the reference returns is among the port's, but for rounding."""
    values = Values(store)
    own = [leaf for leaf in ref.outputs if leaf.buffer is not None]
    return all(any(values.agree(one, other) for other in port.outputs) for one in own)


def weak_inputs(root: Call, store: Store) -> tuple[str, ...]:
    """Notes on inputs that a mistake can hide behind."""
    notes = []
    for leaf in root.inputs:
        array = store.get(leaf.buffer) if leaf.buffer else np.zeros(0)
        if array.dtype.kind not in "fc" or array.size < 2:
            continue
        wild = int(array.size - np.isfinite(array).sum())
        if wild:
            notes.append(f"input {leaf.name!r} has {wild} entries that are not finite")
        elif (array == array.flat[0]).all():
            value = f"{array.flat[0]:g}"
            notes.append(f"input {leaf.name!r} is {value} everywhere: that hides mistakes")
    return tuple(notes)


def root_outputs(called: Call, store: Store) -> dict[str, Any]:
    """Arrays that the called module returned, by leaf, in the layout of its side."""
    return {
        # a copy: reports keep it, and a mapping would keep the whole file
        leaf.name: np.array(_recorded(store, leaf), order="C")
        for leaf in called.outputs
        if leaf.buffer is not None
    }


def _recorded(store: Store, leaf: Leaf) -> Any:
    assert leaf.buffer is not None
    array = store.get(leaf.buffer)
    return np.moveaxis(array, -1, 1) if leaf.moved else array
