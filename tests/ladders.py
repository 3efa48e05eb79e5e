"""What the ladder of each autoencoder is held to."""

from dataclasses import replace
from pathlib import Path

from parity.pipeline import run_pair
from parity.report import Report
from parity.report.diff import diff
from parity.selftest.rounds import selftest

BASELINES = Path(__file__).parents[1] / "reports/baseline"
"""What `make baseline` wrote when it was last committed."""

RATCHET = 2.0
"""No row may be worse by more than this; noise stays below, whatever the processor."""


def check_coverage(report):
    """Everything has a counterpart, and none of it is inlined."""
    coverage = report.coverage
    assert coverage.complete
    assert not coverage.inlined
    assert coverage.matched_calls == coverage.calls
    assert coverage.matched_parameters == coverage.parameters


def check_ratchet(report, folder):
    """Nothing is worse than in the committed baseline in this folder."""
    found = diff(Report.from_json(BASELINES / folder / "report.json"), report)
    assert not found.other_inputs
    assert found.holds(RATCHET), ("make baseline, if this is meant", found.failures(RATCHET))


def check_outputs(report, real):
    """The whole model agrees on real input, the case of this name, and its outputs are no zeros."""
    table = report.table
    outputs = table[(table["path"] == "") & table["case"].str.endswith(f"/{real}")]
    assert set(outputs["case"]) == {f"encode/{real}", f"decode/{real}", f"forward/{real}"}
    assert outputs.ref_rms.min() > 0.05
    assert outputs.rel_l2.max() < 5e-6
    return outputs


def check_selftest(pair, seed):
    """Every known mistake is found, where it is and for what it is."""
    result = selftest(pair, seed=seed)
    assert result.unshown == ()
    assert [trial for trial in result.singles if not trial.killed] == []
    assert [trial for trial in result.triples if not trial.place] == []
    assert result
    return result


def check_checkpoint(pair, folder, **options):
    """Both sides read what diffusers saved there."""
    encode = replace(pair, cases=lambda *given: pair.cases(*given)[:1])
    report = run_pair(encode, {"weights": str(folder), **options})
    assert not report.faults
    assert report.facts["weights"] == str(folder)
