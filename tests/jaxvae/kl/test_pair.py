"""The ladder of the autoencoder of images on a real picture, and known mistakes in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxvae.pairs.kl.ladder import CONFIGS, RUNGS
from jaxvae.pairs.kl.mistakes import MISTAKES
from jaxvae.pairs.kl.pair import PAIR
from jaxvae.pairs.port import R_LIMIT
from parity.core.exceptions import InputError
from parity.pipeline import run_pair
from parity.report import Report
from parity.report.diff import diff
from parity.selftest.bench import selftest
from parity.selftest.mistakes import GENERAL

BASELINE = Path(__file__).parents[3] / "reports/baseline/kl/report.json"
"""What `make baseline` wrote when it was last committed."""

RATCHET = 2.0
"""No row may be worse by more than this; noise stays below, whatever the processor."""


@pytest.fixture(scope="module")
def ladder():
    """One run of the whole ladder on the small configuration and a real picture."""
    return run_pair(PAIR, {"config": "small"})


@pytest.mark.parity
def test_every_gate_holds(ladder):
    assert ladder.verdict == "PASS", ladder.faults
    assert ladder.facts["input"].startswith("astronaut.png of scikit-image")
    coverage = ladder.coverage
    assert coverage.complete
    assert not coverage.inlined
    assert coverage.matched_calls == coverage.calls
    assert coverage.matched_parameters == coverage.parameters


@pytest.mark.parity
def test_nothing_is_worse_than_in_the_committed_baseline(ladder):
    found = diff(Report.from_json(BASELINE), ladder)
    assert not found.other_inputs
    assert found.holds(RATCHET), ("make baseline, if this is meant", found.failures(RATCHET))


@pytest.mark.parity
def test_rungs_and_outputs(ladder):
    table = ladder.table
    kinds = {kind for rung in RUNGS for kind in rung.kinds}
    assert set(table.kind) == kinds - {"Mish", "GELU", "ReLU"}  # other act_fn
    large = table["case"].str.contains("mean30")
    assert table[~large].incl_rel_l2.max() < 5e-6
    assert table[large].R.max() <= R_LIMIT
    outputs = table[(table["path"] == "") & table["case"].str.endswith("/picture")]
    assert set(outputs["case"]) == {"encode/picture", "decode/picture", "forward/picture"}
    assert outputs.ref_rms.min() > 0.05
    assert outputs.rel_l2.max() < 5e-6


def test_what_it_is_made_of():
    for config in CONFIGS.values():
        assert PAIR.make_torch.__self__.model.config_class is type(config)
    assert PAIR.facts(PAIR.resolved(), 3)["config"] == "sd"
    with pytest.raises(InputError, match="no configuration 'tiny'; expected flux, sd, small or"):
        run_pair(PAIR, {"config": "tiny"})
    with pytest.raises(InputError, match="needs at least 4x4"):
        run_pair(PAIR, {"config": "small", "size": "3x8"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_known_mistakes_are_found_where_and_for_what_they_are(seed):
    result = selftest(PAIR, seed=seed)
    assert len(result.singles) >= len(GENERAL) + len(MISTAKES) - 2  # what no draw could show
    assert [trial for trial in result.singles if not trial.killed] == []
    assert [trial for trial in result.triples if not trial.place] == []
    assert result


@pytest.mark.slow
def test_a_checkpoint_of_both_sides(kl, tmp_path):
    kl.theirs.save_pretrained(tmp_path)
    encode = replace(PAIR, cases=lambda *given: PAIR.cases(*given)[:1])
    report = run_pair(encode, {"weights": str(tmp_path)})
    assert not report.faults
    assert report.facts["weights"] == str(tmp_path)
