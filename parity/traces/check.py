"""Check a port against a golden trace: as `run_pair`, without PyTorch."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.extras import emulation
from parity.host import environment, memory
from parity.core.lock import alone
from parity.run.assemble import Programs, assembled, paired
from parity.run.case import Outcome, run_case
from parity.core.exceptions import InputError
from parity.traces.index import AGAIN, NOT_OFFLINE, StoredCase
from parity.traces.methods import method_of
from parity.traces.recorded import BY_RUN, Recorded
from parity.traces.trace import Golden, open_trace
from parity.host.progress import Progress
from parity.core.pair import Case, Pair
from parity.report import Report
from parity.options.options import Options
from parity.core.tensors import tied


@alone
def check_trace(
    folder: Path,
    pair: Pair,
    *,
    emulate: str | None = None,
    eager: bool = False,
    progress: Progress | None = None,
    own_process: bool = False,
) -> Report:
    """Run the port of `pair` on what the trace in `folder` holds, and measure, judge and locate.

    The port gets the recorded weights. What is measured is what `run_pair` measures; causes are
    told only where arrays or weights show them.

    Raises:
        InputError: the trace cannot be used, for this at least, or is of another pair.
    """
    emulation.check(emulate)
    progress = progress or Progress()
    start, before = time.monotonic(), memory.resident_memory()
    progress.stage("checking the files of the trace")
    golden = open_trace(folder)
    _check_pair(golden, pair)
    if emulate and golden.index.only:
        raise InputError(
            f"{folder}: has some modules only, and emulate= is measured on all calls; record all"
        )
    cases = [_case(stored, pair) for stored in golden.index.cases]
    progress.stage("making the port")
    assert pair.offline is not None  # checked above
    port = pair.offline.make_nnx(golden.index.settings, golden.state)
    options = Options(
        pair.rungs, pair.declared, pair.rename, pair.layout, fused=pair.fused,
        emulate=emulate, eager=eager, only=golden.index.only, depth=golden.index.depth,
        tied=tied(golden.tensors),
    )  # fmt: skip
    progress.stage("comparing the weights")
    pairs = paired(golden.modules, golden.tensors, port, options)
    reference = Recorded(golden)
    programs = Programs(own_process)
    outcomes = []
    for case, stored in zip(cases, golden.index.cases, strict=True):
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        programs.before(case.path, [form.shape for form in stored.given])
        outcome = run_case(case, reference, port, options, progress, weights=pairs.weight_map)
        outcomes.append(replace(outcome, notes=(*outcome.notes, *_doubts(outcome))))
    facts = {
        **golden.index.facts,
        "trace": str(folder),
        "seconds": round(time.monotonic() - start, 1),
        **progress.facts(),
        "peak_memory_gib": memory.gib(memory.peak_memory()),
        "peak_memory_above_start_gib": memory.gib(memory.peak_memory() - before),
    }
    return assembled(
        pair.name, outcomes, pairs, options, facts, _environment(golden), golden.index.gaps
    )


def _doubts(outcome: Outcome) -> tuple[str, ...]:
    rows = [row for row in outcome.rows if row.verdict == "WARN" and not row.one_sided]
    if not rows:
        return ()
    return (f"{rows[0].case}: {len(rows)} rows are doubtful, of `{rows[0].path}` first; {BY_RUN}",)


def _check_pair(golden: Golden, pair: Pair) -> None:
    folder, index = golden.folder, golden.index
    if index.pair != pair.name:
        raise InputError(
            f"{folder}: a trace of pair {index.pair!r}, not of {pair.name!r}; use --pair"
        )
    if pair.offline is None:
        raise InputError(NOT_OFFLINE.format(pair.name))
    if index.layout != dict(pair.layout):
        raise InputError(
            f"{folder}: recorded with layout {dict(index.layout)}, the pair has"
            f" {dict(pair.layout)}; {AGAIN}"
        )


def _case(stored: StoredCase, pair: Pair) -> Case:
    return Case(
        stored.name,
        path=stored.path,
        nnx=method_of(stored.nnx, pair),
        depth=stored.depth,
        floor=stored.floor,
        r_limit=stored.r_limit,
        shipped=None if stored.shipped is None else method_of(stored.shipped, pair),
    )


def _environment(golden: Golden) -> dict[str, Any]:
    """This machine's, with PyTorch's side of it as it was where the trace was recorded."""
    recorded = dict(golden.index.environment)
    theirs = {key: value for key, value in recorded.items() if key.startswith("torch_")}
    return {**environment.describe_port(recorded["seed"]), **theirs, "recorded": recorded}
