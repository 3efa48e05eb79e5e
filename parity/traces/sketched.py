"""One case of a check against a trace of statistics: the port runs by itself.

No call can be given the reference's arrays, which the trace does not hold.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import jax
from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.extras.input_coverage import exercised
from parity.align.calls import align
from parity.run.case import (
    Outcome,
    called_module,
    check_inputs,
    choice_of,
    root_outputs,
    weak_inputs,
)
from parity.options.scope import opened, with_deeper
from parity.diagnose.scene import Scene
from parity.force.common import Sides
from parity.core.globs import renamed
from parity.traces.propagate import judge_apart
from parity.traces.index import StoredCase
from parity.traces.recorded import Recorded, told
from parity.traces.sample import KEPT
from parity.traces.shards import Reader
from parity.traces.view import Sampled, Side
from parity.align.ignored import left_out
from parity.judge.faults import find_faults
from parity.extras.compiled_run import compare_unobserved
from parity.host.progress import Progress
from parity.capture.recorder import join
from parity.core.pair import Case
from parity.core.calls import Trace
from parity.options.options import Rules
from parity.core.store import Store
from parity.core.tensors import Weight

NOTE = (
    f"statistics: the trace has at most {KEPT} entries of each array, and all errors are of these;"
    " the port ran by itself, so of calls behind a fault nothing is known"
)


def check_sketched(
    case: Case,
    stored: StoredCase,
    reference: Recorded,
    reader: Reader,
    nnx_root: nnx.Module,
    rules: Rules,
    progress: Progress,
    weights: Sequence[Weight],
) -> Outcome:
    """Run the port on the recorded input, and judge it by what the trace has of each call."""
    rename = rules.rename or {}
    nnx_module = called_module(case, nnx_root, rename)
    choice = choice_of(case, reference.paths(), nnx_root, rules)
    eager = jax.disable_jit() if rules.disable_jit else nullcontext()
    with Store() as store, eager:
        given, given_kwargs = reference.arguments(case, {})
        port, prefix = Trace((), {}), renamed(case.path, rename)
        if choice.whole or len(stored.calls) > 1:
            progress.stage("port")
            port = capture_nnx.record(
                nnx_module, case.nnx, given, given_kwargs,
                store=store, prefix=prefix, inside=choice.ours,
            )  # fmt: skip
        # after the port: the store reads what both have from the one that it was given first
        ref = reference.record(case, store, {}, choice.theirs)
        called = ref.calls[-1]
        done = exercised(ref.calls, reference.optional(case))
        if port.calls:
            check_inputs(called, port.calls[-1], store)
        if not choice.whole:
            ref, port = opened(ref), opened(port)
        alignment = align(
            ref,
            port,
            rename=rename,
            declared=rules.declared or {},
            rules=rules.weights,
            tied=rules.tied,
        )
        float64 = reference.float64(case)
        view = Sampled(store, Side(stored.sketches, reader), None)
        judged = judge_apart(
            case, alignment.matches, ref.calls, float64, view, store, progress, rungs=rules.rungs
        )
        modules = {
            join(prefix, path): one for path, one in capture_nnx.submodules(nnx_module).items()
        }
        sides = Sides(float64, {**modules, **port.linen}, case.nnx)
        scene = Scene(alignment.matches, ref.calls, sides, judged.exclusives, weights, store)
        faults = find_faults(judged.found, {m.ref.order: m.parent for m in alignment.matches})
        faults = tuple(told(fault, judged.found, scene, reference.diagnose) for fault in faults)
        notes = (*reference.notes(case), *weak_inputs(called, store))
        notes += tuple(f"{case.name}: {note}" for note in alignment.notes)
        uncaptured = {}
        root = next((match for match in alignment.matches if match.ref.parent == -1), None)
        if root is not None and choice.whole and case.shipped is not None:
            progress.stage("the port as it is shipped")
            unobserved = compare_unobserved(root, port.calls, case.shipped, sides, {}, store)
            uncaptured = {case.name: unobserved.fact}
            notes = (*notes, *(f"{case.name}: {note}" for note in [unobserved.note] if note))
        outputs = root_outputs(called, store)
    return Outcome(
        rows=tuple(one.row for one in judged.found),
        faults=faults,
        coverage=with_deeper(alignment.coverage, choice.deeper),
        outputs=outputs,
        exercised=done,
        notes=notes,
        uncaptured=uncaptured,
        left_out=left_out(alignment.matches),
    )
