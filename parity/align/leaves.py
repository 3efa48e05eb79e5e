"""Arrays that two calls were given or returned, paired by name, by value, then by place."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.align.readings import Axes, Values, in_order, readings
from parity.core.calls import Leaf, LeafMatch
from parity.core.globs import why
from parity.core.problems import (
    PORT_LACKS,
    REF_LACKS,
    Problem,
    ProblemKind,
    other_shape,
    other_value,
)

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Values that can be compared without being arrays."""

CLOSE = 2.0**-20
"""Relative difference of floats that were rounded on the way: by a few roundings of float32."""


def match_inputs(
    ref: Sequence[Leaf], port: Sequence[Leaf], values: Values
) -> tuple[LeafMatch, ...]:
    """Pair arguments by parameter name where they fit, then by value, then floats by order.

    Only leaves that both sides have are returned: what the port alone has keeps its value. So does
    a mask of another shape or type, which says the same in another form. If the first arrays of
    both fit nothing, they are paired all the same, with the problem.
    """
    left, right = ([leaf for leaf in leaves if _is_array(leaf)] for leaves in (ref, port))
    first = left[:1], right[:1]
    found = _take(left, right, lambda one, other: one.name == other.name and _alike(one, other))
    found += _take(left, right, values.agree)
    found += _take(left, right, lambda one, other: _first(one, other, first) and _fits(one, other))
    found += _take(left, right, lambda one, other: _floats(one, other) and _alike(one, other))
    if left[:1] == first[0] and right[:1] == first[1]:
        found += zip(*first, strict=False)
    named = {leaf.name: leaf for leaf in port if not _is_array(leaf)}
    plain = ((leaf, named[leaf.name]) for leaf in ref if leaf.name in named)
    matches = [pair(one, other, values) for one, other in (*found, *plain)]
    return tuple(match for match in matches if match is not None and not _opaque(match))


def match_outputs(
    path: str,
    ref: Sequence[Leaf],
    port: Sequence[Leaf],
    declared: Mapping[str, str],
    values: Values,
) -> tuple[LeafMatch, ...]:
    """Pair output leaves by name, by value, then by order; a place in a tuple is no name.

    Of wrong values those belong together that are twice as near to each other as to any other.
    At the door it is one if both sides return as many arrays: callers go by it.
    """
    left, right = [*ref], [*port]
    places = [{leaf.name for leaf in leaves if _is_array(leaf)} for leaves in (ref, port)]
    kept = values.at_door and places[0] == places[1]
    found = _take(
        left, right, lambda one, other: one.name == other.name and (kept or _has_key(one.name))
    )
    found += _take(left, right, values.agree)
    found += _take(left, right, lambda one, other: _nearest(one, other, left, right, values))
    found += _take(left, right, lambda one, other: one.name == other.name and _fits(one, other))
    found += _take(left, right, lambda one, other: one.name == other.name)
    one, other = ([leaf for leaf in leaves if _is_array(leaf)] for leaves in (left, right))
    found += _take(one, other, _fits)
    found += zip(one, other, strict=False)
    port_of = {one.name: other for one, other in found}
    matches = [_match_output(leaf, port_of.get(leaf.name), values) for leaf in ref]
    used = {leaf.name for leaf in port_of.values()}
    spare = [leaf for leaf in port if leaf.name not in used and _is_array(leaf)]
    matches += [LeafMatch(leaf, leaf, problem=REF_LACKS) for leaf in spare]
    return tuple(
        replace(m, declared=why(path, declared) or why(f"{path}#{m.ref.name}", declared) or "")
        for m in matches
        if m is not None
    )


def _nearest(
    one: Leaf, other: Leaf, left: Sequence[Leaf], right: Sequence[Leaf], values: Values
) -> bool:
    """True if two are twice as near to each other as to any other that they could be."""
    rivals = [(one, x) for x in right if x is not other]
    rivals += [(x, other) for x in left if x is not one]
    gaps = [values.gap(*two) for two in rivals if _fits(*two)]
    return _fits(one, other) and bool(gaps) and 2 * values.gap(one, other) < min(gaps)


def _has_key(name: str) -> bool:
    """True of a name that is no place in a tuple."""
    return any(part and not part.isdecimal() for part in name.split("."))


def pair(ref: Leaf, port: Leaf, values: Values) -> LeafMatch | None:
    """Compare what can be told without the error: shape, class of dtype, layout.

    `None` for plain values that are equal.
    """
    if ref.buffer is None or port.buffer is None:
        return _pair_values(ref, port)
    fitting = values.fitting(ref, port)
    if not fitting:
        problem = other_shape(ref.buffer.shape, port.buffer.shape)
        return LeafMatch(ref, port, problem=problem)
    types = ref.buffer.dtype, port.buffer.dtype
    if _dtype_class(types[0].name) != _dtype_class(types[1].name):
        text = f"dtype {types[1]} instead of {types[0]}"
        return LeafMatch(ref, port, problem=Problem(ProblemKind.DTYPE, text))
    return LeafMatch(ref, port, values.choose(ref, port, fitting))


def rank(match: LeafMatch) -> int:
    """How many axes the reference's array has."""
    return len(match.ref.buffer.shape) if match.ref.buffer else 0


def read_alike(
    leaves: Sequence[LeafMatch], known: Mapping[Any, Axes], values: Values
) -> tuple[LeafMatch, ...]:
    """The leaves of a call. Where no reading of one is seen to be right its axes lie in the order
    that is `known` of the port's array, which another call returned, or of arrays of as many axes.
    """
    return tuple(_ordered_as(one, known, values) for one in leaves)


def _ordered_as(match: LeafMatch, known: Mapping[Any, Axes], values: Values) -> LeafMatch:
    ref, port = match.ref, match.port
    if port is None or not (ref.buffer and port.buffer):
        return match
    if match.problem is not None and match.problem.kind is not ProblemKind.SHAPE:
        return match
    order = known.get(port.buffer, known.get(rank(match)))
    if order is None or values.agree(ref, port):
        return match
    found = in_order(ref, port, order)
    return replace(match, reading=found[0], problem=None) if found else match


def same_value(ref: object, port: object) -> bool:
    """Equal plain values; floats up to a few roundings of float32. Other objects are not looked at.

    A truth is no number, though Python has it that `True == 1`.
    """
    if not isinstance(ref, PLAIN):
        return True
    if not isinstance(port, PLAIN) or isinstance(ref, bool) != isinstance(port, bool):
        return False
    if isinstance(ref, float) and isinstance(port, (int, float)):
        return math.isclose(ref, port, rel_tol=CLOSE) or (math.isnan(ref) and math.isnan(port))
    return ref == port


def _take(
    left: list[Leaf], right: list[Leaf], fits: Callable[[Leaf, Leaf], bool]
) -> list[tuple[Leaf, Leaf]]:
    """Take from both lists what fits together, each leaf once."""
    found = []
    for one in [*left]:
        other = next((other for other in right if fits(one, other)), None)
        if other is not None:
            found.append((one, other))
            left.remove(one)
            right.remove(other)
    return found


def _match_output(ref: Leaf, port: Leaf | None, values: Values) -> LeafMatch | None:
    """A leaf and its counterpart; `None` if there is nothing to compare."""
    opaque = not (_is_array(ref) or isinstance(ref.value, PLAIN))
    if port is not None and (opaque or _is_array(port) == _is_array(ref)):
        return pair(ref, port, values)
    if _is_array(ref):
        return LeafMatch(ref, port, problem=PORT_LACKS)
    if port is not None:
        return LeafMatch(port, port, problem=REF_LACKS)
    known = isinstance(ref.value, PLAIN) and ref.value is not None
    return LeafMatch(ref, None, problem=PORT_LACKS) if known else None


def _pair_values(ref: Leaf, port: Leaf) -> LeafMatch | None:
    opaque = [x.value for x in (ref, port) if not isinstance(x.value, PLAIN)]
    if opaque:
        text = f"not compared: {type(opaque[0]).__name__} is no array or plain value"
        return LeafMatch(ref, port, problem=Problem(ProblemKind.OPAQUE, text))
    if same_value(ref.value, port.value):
        return None
    return LeafMatch(ref, port, problem=other_value(ref.value, port.value))


def _opaque(match: LeafMatch) -> bool:
    return match.ref.buffer is None or match.port is None or match.port.buffer is None


def _fits(ref: Leaf, port: Leaf) -> bool:
    """True if the two can be subtracted."""
    if ref.buffer is None or port.buffer is None:
        return False
    kinds = (_dtype_class(leaf.dtype.name) for leaf in (ref.buffer, port.buffer))
    return len({*kinds}) == 1 and bool(readings(ref, port))


def _alike(ref: Leaf, port: Leaf) -> bool:
    """True if the two can be subtracted axis by axis: a mask that has one more is another thing."""
    both = [leaf.buffer for leaf in (ref, port) if leaf.buffer is not None]
    return len({len(buffer.shape) for buffer in both}) == 1 and _fits(ref, port)


def _first(ref: Leaf, port: Leaf, first: tuple[Sequence[Leaf], Sequence[Leaf]]) -> bool:
    return [ref] == first[0] and [port] == first[1]


def _floats(*leaves: Leaf) -> bool:
    return all(leaf.buffer is not None and leaf.buffer.dtype.kind in "fcV" for leaf in leaves)


def _is_array(leaf: Leaf) -> bool:
    return leaf.buffer is not None


def _dtype_class(name: str) -> str:
    # JAX without x64 has no 64-bit types: only the class can be compared.
    return next((kind for kind in ("bool", "int", "float", "complex") if kind in name), name)
