"""The weight map: each tensor of the reference and the leaf of the port that holds it.

Names tell which tensors to compare, the values alone whether they are equal, in what order of axes,
and where not, what is wrong.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from parity.core.globs import renamed, why
from parity.core.tensors import Array, Tensor, Transform, Weight
from parity.weights.axis_order import CLOSE, same_values, usual_axes
from parity.weights.fused import Piece, Rule, pieces
from parity.weights.mismatch import Owners, finding
from parity.weights.module_map import SPARE, Folding
from parity.weights.suggest import suggest

Index = tuple[int | slice, ...]

NAMES = {
    "weight": ("weight", "kernel", "scale", "embedding"),
    "running_mean": ("running_mean", "mean"),
    "running_var": ("running_var", "var"),
}
"""Flax's names of the tensors of PyTorch's modules."""


def make_weight_map(
    ref: Iterable[Tensor],
    port: Iterable[Tensor],
    *,
    modules: Collection[str] = (),
    folding: Folding | None = None,
    rename: Mapping[str, str] | None = None,
    rules: Sequence[Rule] = (),
    declared: Mapping[str, str] | None = None,
) -> tuple[Weight, ...]:
    """One line for each tensor of the reference, in order, then one for each leaf too many.

    A tensor that the port holds in several leaves, by one of the `rules`, has a line for each.
    `modules` are the paths of the port's modules; `folding` says which correspond, and with which
    the tensors of the others count: without it those whose names `rename` makes equal do. `rename`
    maps globs of the reference's paths and tensors to the port's, `declared` globs of them to the
    reason why they need no counterpart.

    Raises:
        InputError: the rules cannot be used.
    """
    ref_by_name = {tensor.full_name: tensor for tensor in ref if tensor.name not in SPARE}
    port_by_name = {tensor.full_name: tensor for tensor in port if tensor.name not in SPARE}
    rename = rename or {}
    folding = folding or _by_name(ref_by_name, rename)
    found = _pairs(ref_by_name, port_by_name, rename, rules, folding, modules)
    owners = Owners(piece.ref for piece in found)
    used = {_key(piece.port) for piece in found if piece.port}
    spare = [tensor for tensor in port_by_name.values() if _key(tensor) not in used]
    lines = [*(_line(piece, owners) for piece in found), *map(_extra, spare)]
    lines = suggest(lines, ref_by_name, spare, modules, rename)
    return tuple(
        replace(
            line,
            shape=ref_by_name[line.name].shape if line.name else (),
            nnx_shape=port_by_name[line.nnx_name].shape if line.nnx_name else (),
            declared=_declared(line, declared or {}),
        )
        for line in lines
    )


def _pairs(
    ref: Mapping[str, Tensor],
    port: Mapping[str, Tensor],
    rename: Mapping[str, str],
    rules: Sequence[Rule],
    folding: Folding,
    modules: Collection[str],
) -> list[Piece]:
    """Pieces by rule, by `rename` of the tensor, then module by module."""
    packed: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces(rules, ref, port):
        packed[piece.ref.full_name].append(piece)
    taken = {piece.port.full_name for found in packed.values() for piece in found if piece.port}
    left = {name: tensor for name, tensor in ref.items() if name not in packed}
    single = _by_rename(left, {name: port[name] for name in port if name not in taken}, rename)
    taken |= {leaf.full_name for leaf in single.values()}
    groups = _by_module((left[name] for name in left if name not in single), folding.ref)
    leaves = _by_module((port[name] for name in port if name not in taken), folding.port)
    for path, group in groups.items():
        # a list of parameters is a module of the reference, and none of the port
        listed = renamed(path, rename)
        place = folding.partners.get(path, listed if listed not in modules else None)
        single |= {} if place is None else assign(group, leaves[place])
    # a tensor that two modules of the reference share may be one leaf, in either of them
    shared = {_key(ref[name]): leaf for name, leaf in single.items()}
    found: list[Piece] = []
    for name, tensor in ref.items():
        one = Piece(tensor, single.get(name) or shared.get(_key(tensor)))
        found += packed.get(name, [one])
    return found


def _by_rename(
    ref: Iterable[str], port: Mapping[str, Tensor], rename: Mapping[str, str]
) -> dict[str, Tensor]:
    """The leaves of tensors that `rename` gives another name, each leaf once."""
    found: dict[str, Tensor] = {}
    taken: set[str] = set()
    for name in ref:
        target = renamed(name, rename)
        if target != name and target in port and target not in taken:
            found[name] = port[target]
            taken.add(target)
    return found


def _by_module(tensors: Iterable[Tensor], owners: Mapping[str, str]) -> dict[str, list[Tensor]]:
    """Tensors by the module that they count with."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        found[owners.get(tensor.path, tensor.path)].append(tensor)
    return found


def _by_name(ref: Mapping[str, Tensor], rename: Mapping[str, str]) -> Folding:
    return Folding({tensor.path: renamed(tensor.path, rename) for tensor in ref.values()})


def assign(ref: Sequence[Tensor], port: Sequence[Tensor]) -> dict[str, Tensor]:
    """Pair the tensors of one module: by name, else by values, else by size in order.

    Where not even a size fits, a tensor of the right name is the counterpart all the same.
    """
    found: dict[str, Tensor] = {}
    left = {leaf.full_name: leaf for leaf in port}
    for fits in (_named, _alike, _sized, _only_named):
        for tensor in ref:
            if tensor.full_name in found:
                continue
            leaf = next((leaf for leaf in left.values() if fits(tensor, leaf)), None)
            if leaf is not None:
                found[tensor.full_name] = left.pop(leaf.full_name)
    return found


def _only_named(ref: Tensor, port: Tensor) -> bool:
    return port.name in NAMES.get(ref.name, (ref.name,))


def _sized(ref: Tensor, port: Tensor) -> bool:
    return port.size == ref.size


def _named(ref: Tensor, port: Tensor) -> bool:
    return _only_named(ref, port) and _sized(ref, port)


def _alike(ref: Tensor, port: Tensor) -> bool:
    return _sized(ref, port) and same_values(ref.read(), port.read(), CLOSE) is not None


def _line(piece: Piece, owners: Owners) -> Weight:
    ref, port = piece.ref, piece.port
    line = Weight(ref.full_name, port.full_name if port else "", _kind(ref), ref.shape, ())
    if port is None:
        text = piece.problem or "the port has no such tensor"
        return replace(line, cause="weights_missing", finding=text)
    if piece.problem or ref.size != port.size:
        text = piece.problem or f"{ref.shape}, and the port's `{port.full_name}` is {port.shape}"
        return replace(line, cause="shape", finding=text)
    axes = _axes(ref, port)
    if axes is None:
        cause, text = finding(ref, port, owners)
        return replace(line, cause=cause, finding=f"at {port.part}: {text}" if port.part else text)
    line = replace(line, transform=_transform(ref, port, axes))
    expected = usual_axes(ref.shape, port.shape) if port.name == "kernel" else None
    if expected is None or axes == expected:
        return line
    text = f"axes {axes} of the reference, not {expected}"
    return replace(line, cause="weights_layout", finding=text)


def _axes(ref: Tensor, port: Tensor) -> tuple[int, ...] | None:
    ref_values, port_values = ref.read(), port.read()
    exact = same_values(ref_values, port_values)
    return exact if exact is not None else same_values(ref_values, port_values, CLOSE)


def _transform(ref: Tensor, port: Tensor, axes: tuple[int, ...]) -> Transform:
    reshaped = tuple(ref.shape[i] for i in axes) != port.shape
    return Transform(axes, reshaped, ref.part, port.part)


def in_order_of_ref(line: Weight, port: Array) -> tuple[Array, Index] | None:
    """A leaf of the port, or anything else of its shape, as the part of the reference's tensor that
    a line pairs it with, and which part that is; `None` if the line does not say.
    """
    known = line.transform
    if not isinstance(known, Transform):
        axes = tuple(range(len(line.shape))) if line.shape == line.nnx_shape else None
        axes = usual_axes(line.shape, line.nnx_shape) or axes
        if axes is None:
            return None
        known = Transform(axes)
    index = known.of.index if known.of else ()
    shape = np.broadcast_to(0, line.shape)[index].shape
    own = port[known.at.index if known.at else ()].reshape([shape[i] for i in known.axes])
    return own.transpose(np.argsort(known.axes)), index


def _extra(port: Tensor) -> Weight:
    text = "belongs to no tensor of the reference"
    return Weight("", port.full_name, _kind(port), (), port.shape, finding=text)


def _kind(tensor: Tensor) -> Literal["parameter", "buffer"]:
    return "buffer" if tensor.buffer else "parameter"


def _key(tensor: Tensor) -> int | str:
    return tensor.identity or tensor.full_name


def _declared(line: Weight, declared: Mapping[str, str]) -> str:
    return why(line.path, declared) or why(line.name or line.nnx_name, declared) or ""
