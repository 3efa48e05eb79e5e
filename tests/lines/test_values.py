import numpy as np
import pytest

from parity.lines.axes import orders
from parity.lines.operations import Program
from parity.lines.values import Likeness, Values


def programs(ref, port, rounding=1e-7):
    """Two programs of one value each, and what finds them in each other."""
    sides = []
    for array in (ref, port):
        program = Program()
        (number,) = program.make("op", [], [array], (), roundings=[rounding])
        sides.append((program, number))
    (left, x), (right, y) = sides
    return Values(left, right, 10.0).pair(x, y)


def drawn_layout(rng, array):
    """The array with its axes split, moved and merged at random.

    The parts of an axis stay in their order: where they do not, the numbers are reordered.
    """
    split, axis = [], []
    for at, size in enumerate(array.shape):
        cuts = [n for n in range(2, size) if size % n == 0]
        n = int(rng.choice(cuts)) if cuts and rng.random() < 0.5 else size
        parts = [n, size // n] if n != size else [size]
        split, axis = [*split, *parts], [*axis, *[at] * len(parts)]
    drawn = rng.permutation(axis)
    left = {at: iter(np.flatnonzero(np.array(axis) == at)) for at in axis}
    array = array.reshape(split).transpose([next(left[at]) for at in drawn])
    at = int(rng.integers(0, array.ndim - 1))
    shape = array.shape
    merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    return array.reshape(merged) if rng.random() < 0.5 else array


@pytest.mark.parametrize("seed", range(40))
def test_a_value_is_found_in_whatever_order_its_axes_are(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.choice([2, 3, 4, 5, 6, 7], size=int(rng.integers(2, 5)), replace=False)
    ref = rng.standard_normal(sizes)
    port = drawn_layout(rng, ref) * (1 + 1e-8 * rng.standard_normal())
    twin = programs(ref, port.astype(np.float32))
    assert twin is not None
    assert twin.likeness in (Likeness.SAME, Likeness.EXCHANGED)
    assert twin.factor == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_another_order_of_the_numbers_is_none_of_axes(seed):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((3, 4, 5))
    port = rng.permutation(ref.ravel()).reshape(3, 4, 5).astype(np.float32)
    assert programs(ref, port).likeness is Likeness.REORDERED


@pytest.mark.parametrize("seed", range(20))
def test_another_value_is_none(seed):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((3, 4, 5))
    port = ref.astype(np.float32)
    port[1, 2, 3] += 1e-4
    assert programs(ref, port) is None


def test_relu_has_many_equal_numbers_and_is_found_all_the_same():
    ref = np.maximum(np.random.default_rng(0).standard_normal((3, 4, 5, 7)), 0)
    port = ref.transpose(0, 2, 3, 1).astype(np.float32)
    assert programs(ref, port).likeness is Likeness.SAME


def test_repeated_entries_tell_repeat_from_tile():
    x = np.random.default_rng(0).standard_normal((2, 6))
    repeated, tiled = np.repeat(x, 2, 1), np.tile(x, (1, 2))
    assert programs(repeated, repeated.astype(np.float32)).likeness is Likeness.SAME
    assert programs(repeated, tiled.astype(np.float32)).likeness is Likeness.REORDERED


def test_a_mask_may_match_by_chance():
    mask = np.tril(np.ones((5, 5), bool))
    assert programs(mask, mask, 0.0).likeness is Likeness.FEW


def test_square_axes_are_exchanged_where_nothing_asks_for_it():
    scores = np.random.default_rng(0).standard_normal((2, 3, 5, 5))
    assert programs(scores, scores.swapaxes(2, 3)).likeness is Likeness.EXCHANGED
    assert programs(scores, scores).likeness is Likeness.SAME


def test_a_factor_is_told():
    x = np.random.default_rng(0).standard_normal((4, 5))
    twin = programs(x, (x.T * 0.25).astype(np.float32))
    assert twin.factor == pytest.approx(0.25)
    assert not twin.plain


def test_the_tolerance_is_that_of_the_value():
    x = np.random.default_rng(0).standard_normal((4, 5))
    port = x + 1e-4
    assert programs(x, port, rounding=1e-7) is None
    assert programs(x, port, rounding=1e-4).likeness is Likeness.SAME


def test_infinite_entries_of_masks_are_the_same():
    x = np.random.default_rng(0).standard_normal((4, 5))
    ref, port = x.copy(), x.copy()
    ref[0], port[0] = -np.inf, np.finfo(np.float32).min
    assert programs(ref, port).likeness is Likeness.SAME
    port[0, 0] = 0.0
    assert programs(ref, port) is None


@pytest.mark.parametrize(
    ("given", "wanted", "moved"),
    [
        ((2, 8, 3, 4), (2, 3, 4, 8), (0, 2, 3, 1)),
        ((2, 3, 20), (2, 3, 4, 5), (0, 1, 2, 3)),
        ((2, 12, 5), (2, 5, 12), (0, 2, 1)),
    ],
)
def test_orders(given, wanted, moved):
    assert moved in [order.moved for order in orders(given, wanted)]


def drawn_values(rng, count):
    """Arrays of few shapes, of numbers of every kind."""
    shapes = [(), (1,), (0, 3), (4,), (2, 3), (3, 2), (2, 3, 4), (6,)]
    for _ in range(count):
        a = rng.standard_normal(shapes[rng.integers(len(shapes))])
        rare = rng.random(a.shape) < 0.3
        kinds = (
            a, 0 * a, 1e-300 * a, np.round(a), a > 0, a + 1j * rng.standard_normal(a.shape),
            np.where(rare, np.nan, a), np.where(rare, np.inf, a), np.where(rare, -3.4e38, a),
        )  # fmt: skip
        yield np.asarray(kinds[rng.integers(len(kinds))])


def changed(rng, array):
    """The array as it is, or times a number, turned, shuffled, or nearly the same."""
    if array.dtype == bool:
        return array
    factor = float(rng.choice([2.0, -1.0, 0.5, 1.0005]))
    near = array + 1e-7 * rng.standard_normal(array.shape)
    shuffled = rng.permutation(array.reshape(-1)).reshape(array.shape)
    return (array, array * factor, array.T, near, shuffled)[rng.integers(5)]


@pytest.mark.parametrize("seed", range(20))
def test_looking_at_all_values_of_a_size_loses_none(seed):
    rng = np.random.default_rng(seed)
    ref = [*drawn_values(rng, 14)]
    port = [changed(rng, array) for array in ref]
    rng.shuffle(port)
    programs = []
    for arrays in (ref, port):
        program = Program()
        for array in arrays:
            program.make("op", [], [np.asarray(array)], (), roundings=[1e-7])
        programs.append(program)
    found, one_by_one = (Values(*programs, 10.0) for _ in range(2))
    for number in range(14):
        for all_of, pair in (
            (found.all_of_port, lambda other, own=number: one_by_one.pair(other, own)),
            (found.all_of_reference, lambda other, own=number: one_by_one.pair(own, other)),
        ):
            twins = [one.number for one in all_of(number)]
            assert twins == [other for other in range(14) if pair(other) is not None]
