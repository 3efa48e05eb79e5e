"""Calls of the reference: arguments for the port, and an output that is known."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.capture import layout as layout_rules
from parity.capture.recorder import bind
from parity.capture.torch import Method, kind_of, target, tensor_of, to_numpy
from parity.core.tree import flatten, mapped, rebuild


def port_arguments(
    module: torch.nn.Module,
    method: Method,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str,
    layout: Mapping[str, str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the port: NumPy arrays, channel-last where one is."""
    kind = kind_of(module)
    names = list(bind(target(module, method), args, kwargs))

    def convert(name: str, value: Any) -> Any:
        flat = flatten(value)
        arrays = []
        for leaf, array in flat.arrays:
            if not isinstance(array, torch.Tensor):  # PyTorch takes no array that runs backwards
                array = tensor_of(np.array(array, order="C"))
            plain = to_numpy(array)
            full = f"{name}.{leaf}" if leaf else name
            floating = plain.dtype.kind in "fcV"
            how = layout_rules.reading(path, full, kind, plain.shape, floating, layout)
            moved = np.moveaxis(plain, 1, -1) if how.move else plain
            arrays.append(np.ascontiguousarray(moved).reshape(moved.shape))
        return rebuild(flat.skeleton, arrays) if arrays else value

    converted = tuple(convert(names[min(i, len(names) - 1)], x) for i, x in enumerate(args))
    return converted, {name: convert(name, value) for name, value in kwargs.items()}


def returning(value: Any, module: torch.nn.Module, method: Method) -> Any:
    """A method that returns `value`, with the arguments of `method`."""
    returned = mapped(tensor_of, value)
    cls = type(module)
    named = cls.forward if method == "__call__" else method
    function = getattr(cls, named) if isinstance(named, str) else named

    @functools.wraps(function)
    def known(*args: Any, **kwargs: Any) -> Any:
        return returned

    return known
