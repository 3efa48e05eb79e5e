import collections
import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parity.core.tree import flatten, rebuild


@dataclasses.dataclass
class Output:
    sample: object
    extra: object


Point = collections.namedtuple("Point", "x y")

leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats(0, 1))
arrays = st.builds(np.full, st.tuples(st.integers(0, 3)), st.integers(0, 9))
trees = st.recursive(
    st.one_of(leaves, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
        st.builds(Output, inner, inner),
    ),
    max_leaves=12,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a is b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Output):
        return same(a.sample, b.sample) and same(a.extra, b.extra)
    return a == b


@given(trees)
def test_rebuild_undoes_flatten(value):
    flat = flatten(value)
    assert same(value, rebuild(flat.skeleton, [array for _, array in flat.arrays]))


def test_names_are_dotted_keys():
    array = np.zeros(2)
    flat = flatten((array, {"conv1": array, "none": None}, Output(array, 3)))
    assert [name for name, _ in flat.arrays] == ["0", "1.conv1", "2.sample"]
    assert flat.statics == (("1.none", None), ("2.extra", 3))
    assert [name for name, _ in flatten(array).arrays] == [""]


def test_skeletons_of_equal_structure_are_equal_and_hashable():
    one, two = (flatten({"x": np.zeros(i), "n": (None, 2)}).skeleton for i in (1, 5))
    assert one == two
    assert hash(one) == hash(two)
    assert one != flatten({"x": np.zeros(1), "n": (None, 3)}).skeleton


def test_diffusers_outputs_survive():
    import torch
    from diffusers.models.autoencoders.vae import DecoderOutput

    made = DecoderOutput(sample=torch.ones(2))
    flat = flatten(made)
    assert [name for name, _ in flat.arrays] == ["sample"]
    again = rebuild(flat.skeleton, [torch.zeros(2)])
    assert isinstance(again, DecoderOutput)
    assert again.sample.sum() == 0


def test_a_key_that_is_written_as_a_number_behind_a_name_is_another_leaf():
    flat = flatten({"a#2": np.ones(1), "a": {"b": np.ones(2)}, "a.b": np.ones(3), "a.b#2": 1.0})
    flat_too = flatten({"a.b#2": np.ones(1), "a.b": np.ones(2), "a": {"b": np.ones(3)}})
    for one in (flat, flat_too):
        names = [name for name, _ in (*one.arrays, *one.statics)]
        assert len(set(names)) == len(names)
