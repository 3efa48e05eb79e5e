"""A tensor that the other side holds in pieces: fused along an axis, in turns, stacked, or both."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from parity.core.tensors import Array, Tensor, TensorPart
from parity.weights.axis_order import constant, fingerprint
from parity.weights.in_turns import Lines, in_turns

NESTED = 2
"""Levels of pieces: layers that are stacked, and fused in each."""

LONGEST = 4096
"""Length of an axis along which one entry at a time is looked for."""

Found = list[tuple[TensorPart, Tensor]]


class Owners:
    """Tells by its values which tensor an array is. Only those of its size are looked at."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._by_size: dict[int, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            self._by_size[tensor.size].append(tensor)
        self._of_size = cache(self._fingerprints)
        self.lines = Lines(one for own in self._by_size.values() for one in own)

    @property
    def sizes(self) -> list[int]:
        """All sizes, the largest first."""
        return sorted(self._by_size, reverse=True)

    def of(self, values: Array) -> Sequence[Tensor]:
        """The tensors with these values in any order; none for a constant."""
        if not values.size or constant(values):
            return ()
        return self._of_size(values.size)[fingerprint(values)]

    def _fingerprints(self, size: int) -> dict[tuple[int, int], list[Tensor]]:
        found: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for tensor in self._by_size[size]:
            found[fingerprint(tensor.read())].append(tensor)
        return found


def pieces_of(whole: Tensor, owners: Owners, depth: int = NESTED) -> Found:
    """The tensors that make up `whole`, each with its piece; several, of half of it, or none.

    A run along an axis that is nobody's belongs to nothing here: it may be wrong.
    """
    if not whole.size:
        return []
    found: list[Found] = [
        _along(whole, axis, owners, depth) for axis, length in enumerate(whole.shape) if length > 1
    ]
    best = max(found, key=_covered, default=[])
    if len(best) > 1 and 2 * _covered(best) >= whole.size:
        return best
    turns = in_turns(whole, owners.lines)
    return turns if len({tensor.full_name for _, tensor in turns}) > 1 else []


def _covered(found: Found) -> int:
    return sum(tensor.size for _, tensor in found)


def _along(whole: Tensor, axis: int, owners: Owners, depth: int) -> Found:
    """Pieces one behind the other along an axis, from its start, and from its end."""
    length = whole.shape[axis]
    each = whole.size // length
    runs = [size // each for size in owners.sizes if not size % each and size < whole.size]
    taken: set[tuple[str, str]] = set()

    def at(start: int, stop: int) -> Found:
        span = (start, None) if stop == start + 1 else (start, stop)
        part = TensorPart((*[None] * axis, span))
        piece = whole.cut(part)
        for tensor in owners.of(piece.read()):
            if _key(tensor) not in taken:
                return [(part, tensor)]
        if stop > start + 1 or depth == 1 or length > LONGEST:
            return []
        inside = pieces_of(piece, owners, depth - 1)
        # the piece of an entry of another axis than the first has no shape of its own
        inside = [(inner, one) for inner, one in inside if not (axis and inner.shape)]
        return [(part.inside(inner), one) for inner, one in inside]

    found: Found = []
    end = length
    for reverse in (False, True):
        place = 0
        while place < end:
            step, new = _next(at, length, place, end, runs, reverse)
            if not new:
                break
            found += new
            taken |= {_key(tensor) for _, tensor in new}
            place += step
        end -= place
    return found


def _next(
    at: Callable[[int, int], Found],
    length: int,
    place: int,
    end: int,
    runs: Sequence[int],
    reverse: bool,
) -> tuple[int, Found]:
    """The piece that begins at a place, or that ends there counted from the end, and its length."""
    for run in dict.fromkeys((*runs, 1)):
        if place + run <= end:
            start = length - place - run if reverse else place
            new = at(start, start + run)
            if new:
                return run, new
    return 0, []


def _key(tensor: Tensor) -> tuple[str, str]:
    return tensor.full_name, str(tensor.part or "")
