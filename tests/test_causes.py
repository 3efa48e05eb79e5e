"""Every cause has an entry in docs/causes.md, whose example is wrong and right as it says."""

import re

import jax
import numpy as np
import pytest

from parity.diagnose.causes import HINTS
from tests.docs.context import CONTEXT
from tests.docs.documents import ROOT, blocks

PAGE = "docs/causes.md"
ENTRIES = re.findall(r"^## (\w+)$", (ROOT / PAGE).read_text(), re.M)
EXAMPLES = dict(
    zip([name for name in ENTRIES if name != "unknown"], blocks(PAGE), strict=True)
)  # fmt: skip


def test_every_cause_has_an_entry():
    assert set(HINTS) == set(ENTRIES)
    assert sorted(ENTRIES) == ENTRIES


@pytest.fixture(scope="module")
def names():
    return CONTEXT[PAGE]()


@pytest.mark.parametrize("cause", EXAMPLES)
def test_an_example_is_wrong_and_right(cause, names):
    found = dict(names)
    with jax.numpy_rank_promotion("allow"):  # as users have it
        exec(EXAMPLES[cause].text, found)
    theirs = found["theirs"].numpy(force=True)
    if theirs.ndim == found["t_image"].ndim and theirs.shape[2:] != (4, 2):
        theirs = np.moveaxis(theirs, 1, -1)
    right, wrong = np.asarray(found["right"]), np.asarray(found["wrong"])
    np.testing.assert_allclose(right, theirs, rtol=5e-5, atol=5e-5)
    assert wrong.shape != theirs.shape or not np.allclose(wrong, theirs, rtol=2e-4, atol=2e-4)
