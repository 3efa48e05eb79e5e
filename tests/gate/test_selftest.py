"""Every known mistake of every kind, made in the small model, is found where it is."""

import pytest

from jaxvae.pairs.cogvideox.pair import PAIR
from tests.ladders import check_selftest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_known_mistakes_are_found_where_and_for_what_they_are(seed):
    result = check_selftest(PAIR, seed)
    assert [trial.verdict for trial in result.healthy] == ["WARN", "WARN"]  # one half each
