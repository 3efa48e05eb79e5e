"""Check a port against a golden trace: as `run_pair`, without PyTorch."""

from dataclasses import replace
from pathlib import Path

from parity.core.exceptions import InputError
from parity.core.lock import one_at_a_time
from parity.core.pair import Pair
from parity.host.progress import Progress
from parity.options.emulate import check_emulate
from parity.options.options import Options
from parity.report import Report
from parity.run.assemble import Comparison
from parity.run.loop import Usage, run_cases
from parity.run.records import Outcome
from parity.run.running_port import RunningPort
from parity.traces.arrays import AGAIN
from parity.traces.methods import case_of, offline_of
from parity.traces.recorded_reference import BY_RUN, Recorded
from parity.traces.trace import Golden, open_trace


@one_at_a_time
def check_trace(
    folder: Path,
    pair: Pair,
    *,
    emulate: str | None = None,
    eager: bool = False,
    progress: Progress | None = None,
    own_process: bool = False,
) -> Report:
    """Report of the port of `pair` against the trace in `folder`.

    The port gets the recorded weights and arguments. What is measured is what `run_pair` measures;
    causes are named only where arrays or weights show them.

    Raises:
        InputError: the trace cannot be used, for this at least, or is of another pair.
    """
    check_emulate(emulate)
    progress, usage = progress or Progress(), Usage()
    progress.stage("checking the files of the trace")
    golden = open_trace(folder)
    _check_pair(golden, pair)
    index = golden.index
    if emulate and index.only:
        raise InputError(
            f"{folder}: has some modules only, and emulate= is measured on all calls; record all"
        )
    cases = [case_of(stored, pair) for stored in index.cases]
    progress.stage("making the port")
    made = offline_of(pair).make_nnx(index.settings, golden.state)
    port = RunningPort(made, own_process=own_process)
    options = Options.of(pair, emulate=emulate, eager=eager, only=index.only, depth=index.depth)
    facts, reference = {**index.facts, "trace": str(folder)}, Recorded(golden)
    comparison = Comparison(pair.name, reference, port, options, reference.environment(), facts)
    return run_cases(
        comparison, cases, progress, usage, finish=_with_doubts, gaps=lambda _: index.gaps
    )


def _with_doubts(outcome: Outcome) -> Outcome:
    """The outcome with a note that doubtful rows can be looked into where PyTorch is."""
    rows = [row for row in outcome.rows if row.verdict == "WARN" and not row.one_sided]
    if not rows:
        return outcome
    first = rows[0]
    note = f"{first.case}: {len(rows)} rows are doubtful, of `{first.path}` first; {BY_RUN}"
    return replace(outcome, notes=(*outcome.notes, note))


def _check_pair(golden: Golden, pair: Pair) -> None:
    folder, index = golden.folder, golden.index
    if index.pair != pair.name:
        raise InputError(
            f"{folder}: a trace of pair {index.pair!r}, not of {pair.name!r}; use --pair"
        )
    offline_of(pair)
    if index.layout != dict(pair.layout):
        raise InputError(
            f"{folder}: recorded with layout {dict(index.layout)}, the pair has"
            f" {dict(pair.layout)}; {AGAIN}"
        )
