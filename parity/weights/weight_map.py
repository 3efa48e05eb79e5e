"""The weight map: each tensor of the reference and the leaf of the port that holds it.

`by_value` tells which tensors to compare, the values alone whether they are equal, in what order of
axes, and where not, what is wrong.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np

from parity.core.globs import why
from parity.core.tensors import Array, Tensor, TensorPart, Transform, Weight
from parity.weights.axis_order import CLOSE, regroups, same_values, usual_axes, usual_order
from parity.weights.by_value import paired
from parity.weights.fused import Piece, Rule
from parity.weights.in_pieces import Owners
from parity.weights.in_turns import ALL, MOST, Lines, in_turns
from parity.weights.mismatch import finding

WHOLE = TensorPart(())

IN_TURNS = "its rows are in another order: on one side those of several parts take turns"

SPARE = frozenset({"num_batches_tracked"})
"""Buffers that evaluation does not read and ports leave out."""


def make_weight_map(
    ref: Iterable[Tensor],
    port: Iterable[Tensor],
    *,
    rename: Mapping[str, str] | None = None,
    rules: Sequence[Rule] = (),
    declared: Mapping[str, str] | None = None,
) -> tuple[Weight, ...]:
    """One line for each tensor of the reference, in order, then one for each leaf too many.

    A tensor that the port holds in several leaves has a line for each. `rename` maps globs of the
    reference's tensors to the port's, `declared` globs of them to the reason why they need no
    counterpart.

    Raises:
        InputError: the rules cannot be used.
    """
    ref_by_name = {tensor.full_name: tensor for tensor in ref if not _spare(tensor)}
    port_by_name = {tensor.full_name: tensor for tensor in port if not _spare(tensor)}
    found = paired(ref_by_name, port_by_name, rename or {}, rules)
    found = [piece for piece in found if piece.port or not piece.ref.derived]
    owners = Owners(piece.ref for piece in found)
    used = {piece.port.identity or piece.port.full_name for piece in found if piece.port}
    spare = [one for one in port_by_name.values() if (one.identity or one.full_name) not in used]
    lines = [*(line for piece in found for line in _lines(piece, owners)), *map(_extra, spare)]
    lines = [
        replace(
            line,
            shape=ref_by_name[line.name].shape if line.name else (),
            nnx_shape=port_by_name[line.nnx_name].shape if line.nnx_name else (),
        )
        for line in lines
    ]
    return with_declared(lines, declared or {})


def with_declared(lines: Iterable[Weight], declared: Mapping[str, str]) -> tuple[Weight, ...]:
    """The lines, each with the reason why it needs no counterpart if there is one."""
    return tuple(replace(line, declared=_declared(line, declared)) for line in lines)


def _lines(piece: Piece, owners: Owners) -> list[Weight]:
    """The line of a piece; several where the same rows lie in another order on each side."""
    whole, ref, port = _line(piece, owners), piece.ref, piece.port
    if not whole.finding or whole.transform or port is None or ref.size != port.size:
        return [whole]
    for right in (ALL, MOST):
        found = [(one, port.cut(part)) for part, one in in_turns(port, Lines([ref]), right)]
        found = found or [(ref.cut(part), one) for part, one in in_turns(ref, Lines([port]), right)]
        # rows are known by values in any order: a flipped kernel has them all
        if found and all(_mostly(*pair) for pair in found):
            return [_line(Piece(*pair), owners) for pair in found]
    return [whole]


def _mostly(ref: Tensor, port: Tensor) -> bool:
    """True if most entries are the same, in the usual order of axes or as they come."""
    values, own = ref.read(), port.read().reshape(-1)
    orders = usual_order(values.ndim), range(values.ndim)
    return any((values.transpose(x).reshape(-1) == own).mean() > MOST for x in orders)


def _spare(tensor: Tensor) -> bool:
    return tensor.buffer and tensor.name in SPARE


def _line(piece: Piece, owners: Owners) -> Weight:
    ref, port = piece.ref, piece.port
    at = port.part if port else None
    name = port.full_name if port else ""
    line = Weight(ref.full_name, name, _kind(ref), (), (), of=ref.part or "", at=at or "")
    if port is None:
        text = piece.problem or f"the port has no such tensor{_parametrized(ref.full_name)}"
        return replace(line, cause="weights_missing", finding=text)
    if piece.problem or ref.size != port.size:
        text = piece.problem or f"{ref.shape}, and the port's `{port.full_name}` is {port.shape}"
        return replace(line, cause="shape", finding=text)
    axes = _axes(ref, port)
    if axes is None:
        cause, text = finding(ref, port, owners)
        return replace(line, cause=cause, finding=f"at {port.part}: {text}" if port.part else text)
    line = replace(line, transform=_transform(ref, port, axes))
    expected = usual_axes(ref.shape, port.shape) if port.name == "kernel" else ()
    if line.in_turns:
        return replace(line, cause="weights_layout", finding=IN_TURNS)
    if not expected or axes in expected:
        return line
    text = f"axes {axes} of the reference, not {expected[0]}"
    return replace(line, cause="weights_layout", finding=text)


def _axes(ref: Tensor, port: Tensor) -> tuple[int, ...] | None:
    ref_values, port_values = ref.read(), port.read()
    exact = same_values(ref_values, port_values)
    return exact if exact is not None else same_values(ref_values, port_values, CLOSE)


def _transform(ref: Tensor, port: Tensor, axes: tuple[int, ...]) -> Transform:
    reshaped = tuple(ref.shape[i] for i in axes) != port.shape
    return Transform(axes, reshaped, ref.part, port.part)


def in_order_of_ref(line: Weight, port: Array) -> tuple[Array, TensorPart] | None:
    """A leaf of the port, or anything else of its shape, as the part of the reference's tensor that
    a line pairs it with, and which part that is; `None` if the line does not say.
    """
    of, at = (part if isinstance(part, TensorPart) else WHOLE for part in (line.of, line.at))
    shape = of.of(np.broadcast_to(0, line.shape)).shape
    own = at.of(port)
    if own.size != prod(shape):
        return None
    known = line.transform
    if isinstance(known, Transform):
        axes: tuple[int, ...] | None = known.axes
    else:
        same = tuple(range(len(shape))) if shape == own.shape else None
        usual = usual_order(len(shape))
        split = usual if regroups(tuple(shape[i] for i in usual), own.shape) else None
        found = usual_axes(shape, own.shape)
        axes = found[0] if len(found) == 1 else same or split
    if axes is None:
        return None
    return own.reshape([shape[i] for i in axes]).transpose(np.argsort(axes)), of


def _extra(port: Tensor) -> Weight:
    text = "belongs to no tensor of the reference"
    return Weight("", port.full_name, _kind(port), (), port.shape, finding=text)


def _kind(tensor: Tensor) -> Literal["parameter", "buffer"]:
    return "buffer" if tensor.buffer else "parameter"


def _declared(line: Weight, declared: Mapping[str, str]) -> str:
    return why(line.path, declared) or why(line.name or line.nnx_name, declared) or ""


_ORIGINAL = re.compile(r"(?:(?P<path>.*)\.)?parametrizations\.(?P<name>[^.]+)\.original\d*")


def _parametrized(name: str) -> str:
    """Advice on a tensor of which PyTorch makes a weight at every call; `""` of others."""
    found = _ORIGINAL.fullmatch(name)
    if found is None:
        return ""
    path, own = found["path"] or "", found["name"]
    made = f"{path}.{own}" if path else own
    return (
        f"; PyTorch makes `{made}` of it at every call: where the port holds the result, first call"
        " torch.nn.utils.parametrize.remove_parametrizations("
        f"reference.get_submodule({path!r}), {own!r})"
    )
