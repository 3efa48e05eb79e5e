"""Orders of axes that a reshape is tried with."""

import math

from hypothesis import given
from hypothesis import strategies as st

from parity.diagnose.order_probes import _axes

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(SIZES, SIZES)
def test_every_order_is_one_of_all_axes(one, other):
    longer = max(one, other, key=len)
    for order in _axes(one, other):
        assert sorted(order) == list(range(len(longer)))
        assert order != tuple(range(len(longer)))


@given(SIZES.filter(lambda sizes: len(sizes) > 1), st.data())
def test_joined_axes_are_exchanged(many, data):
    at = data.draw(st.integers(0, len(many) - 2))
    few = [*many[:at], math.prod(many[at : at + 2]), *many[at + 2 :]]
    exchanged = (*range(at), at + 1, at, *range(at + 2, len(many)))
    assert exchanged in _axes(many, few)
