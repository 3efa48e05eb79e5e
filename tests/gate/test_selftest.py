"""Every known mistake of every kind, made in the small model, is found where it is."""

import pytest

from jaxvae.pairs.cogvideox.mistakes import MISTAKES
from jaxvae.pairs.cogvideox.pair import PAIR
from parity.selftest.bench import selftest
from parity.selftest.mistakes import GENERAL


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_known_mistakes_are_found_where_and_for_what_they_are(seed):
    result = selftest(PAIR, seed=seed)
    assert len(result.singles) >= len(GENERAL) + len(MISTAKES) - 2  # what no draw could show
    assert [trial for trial in result.singles if not trial.killed] == []
    assert [trial for trial in result.triples if not trial.place] == []
    assert [trial.verdict for trial in result.healthy] == ["WARN", "WARN"]  # one half each
    assert result
