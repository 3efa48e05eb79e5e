"""Coverage of a comparison by its inputs and weights: mistakes elsewhere do not show.

Only what no case exercised is said, so that adding a case shortens the list.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from parity.capture.layout import AXES
from parity.core.calls import Call, Leaf
from parity.core.globs import named
from parity.core.store import Array, Buffer
from parity.core.tensors import Tensor

ALONG = ("frame", "row", "column", "position")
"""Axes along which modules look at neighbours."""


@dataclass(frozen=True)
class InputCoverage:
    """The sizes and arguments that one case exercised.

    `path` is the module that it called. `sizes` holds the sizes of the axes of this module's
    inputs by the axes' names, `images` their heights and widths. `given` and `left_out` hold the
    class and argument of calls that got something, and of calls that got `None` or nothing; an
    argument of the called module is one more that can be left at a value, as `causal=False`.
    `varied` are its arrays of several values, `constant` those of one, by name.
    """

    path: str
    sizes: Mapping[str, frozenset[int]]
    images: frozenset[tuple[int, int]]
    given: frozenset[tuple[str, str]]
    left_out: frozenset[tuple[str, str]]
    varied: frozenset[str] = frozenset()
    constant: Mapping[str, str] = field(default_factory=dict)


def coverage_of(
    calls: Sequence[Call],
    optional: Mapping[str, Collection[str]],
    read: Callable[[Buffer], Array] | None = None,
) -> InputCoverage:
    """The coverage of a case, from the calls of the reference; the called module's is the last.

    `optional` names by class the arguments that need not be given, under `""` those of what was
    called. `read` gives the arrays.
    """
    sizes: dict[str, set[int]] = {}
    images: set[tuple[int, int]] = set()
    for leaf in calls[-1].inputs:
        axes = _axes(leaf)
        for name, size in axes.items():
            sizes.setdefault(name, set()).add(size)
        if "row" in axes:
            images.add((axes["row"], axes["column"]))
    given: set[tuple[str, str]] = set()
    left_out: set[tuple[str, str]] = set()
    root = calls[-1]
    values = {leaf.name: leaf.value for leaf in root.inputs if leaf.buffer is None}
    arrays = {leaf.name.split(".")[0] for leaf in root.inputs if leaf.buffer is not None}
    for argument in optional.get("", ()):
        name, _, default = argument.partition("=")
        same = name not in arrays and str(values.get(name, default or None)) == (default or "None")
        (left_out if same else given).add((root.kind, argument))
    for call in calls:
        if call.parent != -1:
            left_out |= {(call.kind, name) for name in optional.get(call.kind, ())}
        for leaf in call.inputs:
            empty = leaf.buffer is None and leaf.value is None
            (left_out if empty else given).add((call.kind, leaf.name.split(".")[0]))
    return InputCoverage(
        calls[-1].path,
        {name: frozenset(found) for name, found in sizes.items()},
        frozenset(images),
        frozenset(given),
        frozenset(left_out),
        *_constant(root, read),
    )


def _constant(
    root: Call, read: Callable[[Buffer], Array] | None
) -> tuple[frozenset[str], Mapping[str, str]]:
    """The arrays of integers and truths of several values, and those of one; one 0 is one, too."""
    varied, constant = set(), {}
    for leaf in root.inputs:
        if read and leaf.buffer and leaf.buffer.size and leaf.buffer.dtype.kind in "biu":
            array = read(leaf.buffer)
            first = array.flat[0]
            if not (array == first).all() or (array.size == 1 and first):
                varied.add(leaf.name)
            else:
                constant[leaf.name] = str(first)
    return frozenset(varied), constant


def unexercised(cases: Sequence[InputCoverage]) -> tuple[str, ...]:
    """Short sentences about what no case exercised.

    Sizes are those of the outermost modules that were called: what a module inside them was given
    besides does not exercise them.
    """
    whole = _outermost(cases)
    names = dict.fromkeys(name for case in whole for name in case.sizes)
    sizes = {
        name: sorted({n for case in whole for n in case.sizes.get(name, ())}) for name in names
    }
    images = sorted({image for case in whole for image in case.images})
    return (
        *_batch(sizes.get("item", [])),
        *_single(sizes),
        *_squares(images),
        *_one_parity(sizes),
        *_of_one_value(whole),
        *_left_out(cases),
    )


def all_zero(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """The parameters without an entry that is not zero.

    Biases are left out: many models start with zeros there, and they hide nothing but themselves.
    """
    return tuple(
        tensor.full_name
        for tensor in tensors
        if tensor.size and not tensor.buffer and "bias" not in tensor.name
        if not tensor.read().any()
    )


def neutral(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """A sentence on vectors and numbers that are all ones, and biases and buffers all zeros."""
    ones, zeros = [], []
    for tensor in tensors:
        values = tensor.read() if tensor.size and len(tensor.shape) <= 1 else None
        if values is None or values.dtype.kind not in "fcV":
            continue
        if (tensor.buffer or "bias" in tensor.name) and not values.any():
            zeros.append(tensor.full_name)
        elif (values == 1).all():
            ones.append(tensor.full_name)
    said = [f"{named(x)} all {word}" for x, word in ((ones, "ones"), (zeros, "zeros")) if x]
    return (f"weights are {', '.join(said)}: whether the port uses them does not show",) * bool(
        said
    )


def weak_weights(zeros: Sequence[str]) -> tuple[str, ...]:
    """Weights that a mistake can hide behind, as the notes have it; `zeros` are all zeros."""
    if not zeros:
        return ()
    one = len(zeros) == 1
    verbs = ("is", "it multiplies or adds") if one else ("are", "they multiply or add")
    return (f"{named(zeros)} {verbs[0]} all zeros: what {verbs[1]} was not tested",)


def _axes(leaf: Leaf) -> dict[str, int]:
    """Sizes of an array's axes by name, as far as it is known which axis is which."""
    if leaf.buffer is None or len(leaf.buffer.shape) < 2:
        return {}
    shape = leaf.buffer.shape
    if leaf.buffer.dtype.kind in "iu":
        return {"item": shape[0], "position": shape[1]} if len(shape) == 2 else {"item": shape[0]}
    known = leaf.moved or len(shape) <= 3
    return dict(zip(AXES.get(len(shape), ()), shape, strict=False)) if known else {"item": shape[0]}


def _outermost(cases: Sequence[InputCoverage]) -> list[InputCoverage]:
    paths = {case.path for case in cases}

    def inside(path: str) -> bool:
        return any(path != p and (not p or path.startswith(f"{p}.")) for p in paths)

    return [case for case in cases if not inside(case.path)]


def _batch(sizes: Sequence[int]) -> Iterable[str]:
    if sizes == [1]:
        yield "a batch of 1 only: what mixes up the items of a batch does not show"


def _single(sizes: Mapping[str, Sequence[int]]) -> Iterable[str]:
    for name in ALONG:
        if sizes.get(name) == [1]:
            yield f"1 {name} only: nothing along that axis shows"


def _squares(images: Sequence[tuple[int, int]]) -> Iterable[str]:
    if images and all(height == width for height, width in images) and images != [(1, 1)]:
        found = ", ".join(f"{height}x{width}" for height, width in images)
        yield f"square images only ({found}): height and width swapped do not show"


def _one_parity(sizes: Mapping[str, Sequence[int]]) -> Iterable[str]:
    clauses = []
    for remainder, word in enumerate(("even", "odd")):
        found = [
            f"{name}s ({', '.join(map(str, sizes[name]))})"
            for name in ALONG
            if sizes.get(name, [1]) != [1] and {size % 2 for size in sizes[name]} == {remainder}
        ]
        if found:
            clauses.append(f"only {word} numbers of {' and '.join(found)}")
    if clauses:
        yield f"{', '.join(clauses)}: what a remainder changes does not show"


def _left_out(cases: Sequence[InputCoverage]) -> Iterable[str]:
    given = {pair for case in cases for pair in case.given}
    kinds: dict[str, list[str]] = {}
    for kind, argument in sorted({pair for case in cases for pair in case.left_out} - given):
        kinds.setdefault(argument, []).append(kind)
    for argument, found in kinds.items():
        name, _, value = argument.partition("=")
        yield f"`{name}` was {value or None} in every call of {', '.join(found)}"


def _of_one_value(cases: Sequence[InputCoverage]) -> Iterable[str]:
    varied = {name for case in cases for name in case.varied}
    values: dict[str, dict[str, None]] = {}
    for case in cases:
        for name, value in case.constant.items():
            values.setdefault(name, {})[value] = None
    for name, found in values.items():
        if name not in varied and len(found) == 1:
            yield f"input {name!r} is {next(iter(found))} everywhere: that hides mistakes"
