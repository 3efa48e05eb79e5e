"""Nested arguments and outputs <-> a list of named arrays and a hashable skeleton.

Knows no framework: anything with `shape` and `dtype` is an array. Leaf names are dotted keys
(`1.conv1`); a bare array has the name `""`. Of two leaves that would have one name, of the keys
`0` and `"0"`, the later one has its number behind the name.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of array number `index` in a skeleton."""

    index: int


@dataclasses.dataclass(frozen=True)
class Static:
    """A leaf that is no array: `None`, a number, a string, any other object."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Node:
    """A container: its type, the keys of its children, the children."""

    kind: type
    keys: tuple[Any, ...]
    children: tuple["Skeleton", ...]


Skeleton = Slot | Static | Node


@dataclasses.dataclass(frozen=True)
class Flat:
    """A flattened value.

    `arrays` and `statics` pair each leaf's dotted name with the leaf; `skeleton` rebuilds the
    value from other arrays in the same order, and is hashable if every static leaf is.
    """

    skeleton: Skeleton
    arrays: tuple[tuple[str, Any], ...]
    statics: tuple[tuple[str, Any], ...]


def is_array(value: Any) -> bool:
    """True for an array or tensor of any framework; a typed JAX key holds no numbers."""
    if getattr(value, "is_nested", False) is True:  # a tensor of tensors, which has no shape
        return False
    return (
        isinstance(getattr(value, "shape", None), tuple)  # random streams answer to every name
        and hasattr(value, "dtype")
        and not isinstance(value, type)
        and not str(value.dtype).startswith("key<")
    )


def flatten(value: Any) -> Flat:
    """Flatten dicts, lists, tuples, named tuples and dataclasses, keeping `None` as a leaf."""
    arrays: list[tuple[str, Any]] = []
    statics: list[tuple[str, Any]] = []
    skeleton = _taken_apart(value, "", arrays, statics, set())
    return Flat(skeleton, tuple(arrays), tuple(statics))


def rebuild(skeleton: Skeleton, arrays: Sequence[Any]) -> Any:
    """The value that `flatten` took apart, with `arrays` in place of the original ones."""
    match skeleton:
        case Slot(index):
            return arrays[index]
        case Static(value):
            return value
        case Node(kind, keys, children):
            values = [rebuild(child, arrays) for child in children]
            return _assemble(kind, keys, values)


def statics(skeleton: Skeleton | None) -> Iterator[Any]:
    """The leaves that are no arrays."""
    if isinstance(skeleton, Static):
        yield skeleton.value
    elif isinstance(skeleton, Node):
        for child in skeleton.children:
            yield from statics(child)


def with_statics(skeleton: Skeleton, change: Callable[[Any], Any]) -> Skeleton:
    """The skeleton with `change(leaf)` for the leaves that are no arrays, once for each object."""
    made: dict[int, Any] = {}
    for value in statics(skeleton):
        if id(value) not in made:
            made[id(value)] = change(value)
    return _with(skeleton, made)


def _with(skeleton: Skeleton, made: Mapping[int, Any]) -> Skeleton:
    match skeleton:
        case Static(value):
            return Static(made[id(value)])
        case Node(kind, keys, children):
            return Node(kind, keys, tuple(_with(child, made) for child in children))
    return skeleton


def containers(value: Any) -> list[Any]:
    """The lists and dicts in a nested value, which code can change in place."""
    found = [value] if isinstance(value, (list, dict)) else []
    return found + [inner for _, child in _children(value) for inner in containers(child)]


def hand_back(held: Sequence[Any], passed: Sequence[Any]) -> None:
    """Give lists and dicts what those that stood in for them in a call hold now."""
    for own, new in zip(held, passed, strict=False):
        if isinstance(own, list):
            own[:] = new
        else:
            own.update(new)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nested value with `change(array)` for each array; itself if it holds none."""
    flat = flatten(value)
    arrays = [change(array) for _, array in flat.arrays]
    return rebuild(flat.skeleton, arrays) if arrays else value


# not inside `flatten`: a closure that calls itself keeps its arrays until garbage is collected
def _taken_apart(
    item: Any,
    name: str,
    arrays: list[tuple[str, Any]],
    statics: list[tuple[str, Any]],
    taken: set[str],
) -> Skeleton:
    children = () if is_array(item) else tuple(_children(item))
    if not children and not isinstance(item, (Mapping, list, tuple)):
        numbered = (f"{name}#{at}" for at in itertools.count(len(taken)))
        own = next(one for one in itertools.chain([name], numbered) if one not in taken)
        taken.add(own)
        if not is_array(item):
            statics.append((own, item))
            return Static(item)
        arrays.append((own, item))
        return Slot(len(arrays) - 1)
    inner = tuple(
        _taken_apart(child, f"{name}.{key}" if name else str(key), arrays, statics, taken)
        for key, child in children
    )
    return Node(type(item), tuple(key for key, _ in children), inner)


def _children(item: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(item, Mapping):
        yield from item.items()
    elif isinstance(item, tuple) and hasattr(item, "_fields"):
        yield from zip(item._fields, item, strict=True)
    elif isinstance(item, (list, tuple)):
        yield from enumerate(item)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        for field in dataclasses.fields(item):
            yield field.name, getattr(item, field.name)


def _assemble(kind: type, keys: tuple[Any, ...], values: list[Any]) -> Any:
    if issubclass(kind, Mapping):
        # a dataclass that is a mapping too (diffusers' outputs) takes its fields by keyword
        pairs = dict(zip(keys, values, strict=True))
        keywords = dataclasses.is_dataclass(kind)
        # a defaultdict takes its factory first: what the call reads is in the dict already
        make: Any = dict if issubclass(kind, defaultdict) else kind
        return make(**pairs) if keywords else make(pairs)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple.__new__(kind, values)  # not by its own code, which may check what it gets
    if issubclass(kind, (list, tuple)):
        return kind(values)
    # bypass __init__ and __post_init__: the fields already hold their final values
    made = object.__new__(kind)
    for key, value in zip(keys, values, strict=True):
        object.__setattr__(made, key, value)
    return made
