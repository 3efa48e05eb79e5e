"""Numbers that a module states, of both frameworks, under one name each."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from parity.core.calls import ModuleInfo
from parity.core.globs import named, path_name

NAMES: Mapping[str, str] = {
    **dict.fromkeys(("eps", "epsilon", "variance_epsilon", "norm_eps"), "epsilon"),
    **dict.fromkeys(("stride", "strides"), "stride"),
    **dict.fromkeys(("dilation", "kernel_dilation"), "dilation"),
    **dict.fromkeys(("groups", "feature_group_count"), "groups"),
    **dict.fromkeys(("negative_slope", "slope"), "negative slope"),
    "num_groups": "number of groups",
    "momentum": "momentum",
}
"""Attributes that mean the same, and what they mean. Padding shows in every output, and may stand
in the code around the module instead."""


def constants(module: Any) -> dict[str, tuple[float, ...]]:
    """The numbers by what they mean, one of several that are all the same.

    The momentum of Flax's batch norm is what is kept, and not what is taken.
    """
    attributes, kinds = vars(module), {base.__name__: base for base in type(module).__mro__}
    found: dict[str, tuple[float, ...]] = {}
    for name, meaning in NAMES.items():
        numbers = [*_numbers(attributes.get(name))]
        if numbers:
            found[meaning] = (*(numbers if len({*numbers}) > 1 else numbers[:1]),)
    if "momentum" in found and kinds.get("BatchNorm") is nnx.BatchNorm:
        found["momentum"] = (1 - found["momentum"][0],)
    return found


def _numbers(value: Any) -> Iterator[float]:
    """Those in a number, or in nested tuples of them; a pair of equal ones counts once."""
    if isinstance(value, (tuple, list)):
        inner = [[*_numbers(one)] for one in value]
        pairs = all(isinstance(one, (tuple, list)) for one in value)
        yield from (x for one in inner for x in (dict.fromkeys(one) if pairs else one))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def other_constants(
    ref: Mapping[str, ModuleInfo], port: Mapping[str, ModuleInfo], port_of: Mapping[str, str]
) -> dict[str, list[str]]:
    """By module of the reference, what its counterpart states otherwise."""
    found: dict[str, list[str]] = {}
    for path, place in port_of.items():
        own = port[place].constants if place in port else {}
        for meaning, numbers in ref[path].constants.items():
            other = own.get(meaning, numbers)
            if len(other) != len(numbers) or not all(map(math.isclose, numbers, other)):
                text = f"{meaning} is {_text(other)}, and the reference's {_text(numbers)}"
                found.setdefault(path, []).append(text)
    return found


def stated_otherwise(found: Mapping[str, Sequence[str]], ran: Collection[str]) -> tuple[str, ...]:
    """Notes on what modules that ran state otherwise, which these inputs may not show."""
    paths: dict[str, list[str]] = {}
    for path, texts in found.items():
        for text in texts if path in ran else ():
            paths.setdefault(text, []).append(path_name(path))
    return tuple(f"{named(where)}: {text}" for text, where in paths.items())


def _text(numbers: Sequence[float]) -> str:
    return ", ".join(f"{one:g}" for one in numbers)
