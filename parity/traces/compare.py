"""Compare two golden traces: what another version, machine or edit of the reference changes.

Neither model runs. The first trace is the reference and the second stands in place of the port, in
what the report says too: its facts name the folders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from parity.extras.input_coverage import Exercised, exercised
from parity.align.calls import align
from parity.run.assemble import Paired, assembled
from parity.run.case import Outcome, root_outputs, weak_inputs
from parity.options.scope import choose, opened, with_deeper
from parity.diagnose.scene import Scene
from parity.core.exceptions import InputError
from parity.run.explain import explained
from parity.weights.module_map import fold
from parity.force.common import Sides
from parity.traces.propagate import judge_apart
from parity.traces.index import Index, StoredCase
from parity.traces.recorded import BY_RUN, Recorded
from parity.traces.trace import Golden, adopted, open_trace
from parity.weights.weight_map import make_weight_map
from parity.judge.faults import Found, find_faults
from parity.extras.nonfinite import first_nonfinite
from parity.host.progress import Progress
from parity.core.pair import Case
from parity.core.verdicts import Coverage, Diagnosis
from parity.core.calls import Leaf, Trace
from parity.core.measurements import NonFinite
from parity.report import Report
from parity.options.options import Rules
from parity.core.store import Store
from parity.core.tensors import Tensor, Transform, Weight

LOOK = "look at what differs in the code of this module"


def compare_traces(before: Path, after: Path, *, progress: Progress | None = None) -> Report:
    """Compare the traces in two folders, call by call.

    Raises:
        InputError: one cannot be used, or they are not of one pair, one choice of modules and the
            same inputs.
    """
    progress = progress or Progress()
    progress.stage("checking the files of the traces")
    ref, other = open_trace(before), open_trace(after)
    _check_alike(ref, other)
    rules = Rules(only=ref.index.only, depth=ref.index.depth, layout=ref.index.layout)
    progress.stage("comparing the weights")
    pairs = _paired(ref, other)
    found = {case.key: case for case in other.index.cases}
    outcomes = []
    for case in ref.index.cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        partner = found.pop(case.key, None)
        if partner is None:
            outcomes.append(_alone(case, f"only {before} has the case {case.name}"))
        else:
            outcomes.append(_compared(ref, case, other, partner, rules, pairs.weight_map, progress))
    outcomes += [_alone(case, f"only {after} has the case {case.name}") for case in found.values()]
    facts = {
        **ref.index.facts,
        "reference": str(before),
        "in place of the port": str(after),
        **progress.facts(),
    }
    return assembled(
        f"{before.name} against {after.name}",
        outcomes,
        pairs,
        rules,
        facts,
        {**other.index.environment, "reference": dict(ref.index.environment)},
        ref.index.gaps,
    )


def _check_alike(ref: Golden, other: Golden) -> None:
    """Refuse traces that are not of one thing."""
    a, b = ref.index, other.index
    for what, one, two in (
        ("pair", a.pair, b.pair),
        ("layout", dict(a.layout), dict(b.layout)),
        ("--only", list(a.only), list(b.only)),
        ("--depth", a.depth, b.depth),
    ):
        if one != two:
            raise InputError(
                f"{ref.folder} and {other.folder}: of {what} {one!r} and {two!r}; traces of one"
                f" {what} can be compared"
            )
    ours, theirs = _inputs(a), _inputs(b)
    differ = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    if differ:
        name, path = differ[0]
        called = f" of {path}" if path else ""
        raise InputError(
            f"{ref.folder} and {other.folder}: of other inputs in {len(differ)} cases,"
            f" {name}{called} first{_why(a, b)}; record both with the same clip, size and seed"
        )


def _inputs(index: Index) -> Mapping[tuple[str, str], str]:
    """By case, a digest of what the pair gave to it, and not of what cases before made of that."""
    found = index.request.get("cases", [])
    try:
        return {(str(name), str(path)): str(given) for name, path, given in found}
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{index.pair}: the trace does not say what its cases are given"
        ) from error


def _why(a: Index, b: Index) -> str:
    """In what the requests differ that decide on the inputs."""
    ours, theirs = ({**index.facts, "seed": index.environment["seed"]} for index in (a, b))
    words = [
        f"{name} {ours.get(name)} and {theirs.get(name)}"
        for name in ("input", "seed", "weights", "config")
        if ours.get(name) != theirs.get(name)
    ]
    return f" ({'; '.join(words)})" if words else ""


def _paired(ref: Golden, other: Golden) -> Paired:
    folding = fold(ref.modules, other.modules, {path: path for path in ref.modules})
    weight_map = make_weight_map(ref.tensors, other.tensors, modules=other.modules, folding=folding)
    ours, theirs = ({one.full_name: one for one in golden.tensors} for golden in (ref, other))
    return Paired(len(ref.modules), folding, tuple(_in_order(one, ours, theirs) for one in weight_map))


def _in_order(line: Weight, ref: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Weight:
    """The line: of two models of one framework the axes have one order."""
    usual = Transform(tuple(range(len(line.shape))))
    if not line.transform or line.transform == usual:
        return line
    ours, theirs = ref[line.name], other[line.nnx_name]
    if ours.shape == theirs.shape and (ours.read() == theirs.read()).all():
        return replace(line, transform=usual)
    text = f"its axes are in the order {line.transform}"
    return replace(line, transform="", cause="weights_layout", finding=text)


def _alone(case: StoredCase, why: str) -> Outcome:
    """A case that only one of the traces has."""
    coverage = Coverage(
        modules=len(case.modules), matched=(), declared={}, unmatched=(), dissolved={},
        calls=len(case.calls), matched_calls=0, unmatched_calls=(why,),
    )  # fmt: skip
    nothing = Exercised(case.path, {}, frozenset(), frozenset(), frozenset())
    return Outcome((), (), coverage, {}, nothing)


def _compared(
    ref: Golden,
    stored: StoredCase,
    other: Golden,
    partner: StoredCase,
    rules: Rules,
    weights: Sequence[Weight],
    progress: Progress,
) -> Outcome:
    """One case of both."""
    case = Case(stored.name, path=stored.path, depth=stored.depth, r_limit=stored.r_limit)
    reference = Recorded(ref)
    choice = choose(case.path, ref.modules, (), only=rules.only, depth=rules.depth, rename={})
    with Store() as store:
        ours = _sure(adopted(stored.calls, stored.modules, ref.reader, store))
        theirs = _sure(adopted(partner.calls, partner.modules, other.reader, store))
        called = ours.calls[-1]
        done = exercised(ours.calls, stored.optional)
        if not choice.whole:
            ours, theirs = opened(ours), opened(theirs)
        alignment = align(ours, theirs, rename={}, declared={})
        float64 = reference.float64(case)
        judged = judge_apart(case, alignment.matches, ours.calls, float64, store, progress)
        sides = Sides(float64, {}, "__call__")
        scene = Scene(alignment.matches, ours.calls, sides, judged.exclusives, weights, store)
        faults = find_faults(judged.found, {m.ref.order: m.parent for m in alignment.matches})

        def diagnose(found: Found, scene: Scene) -> Diagnosis:
            shown = reference.diagnose(found, scene)
            return replace(shown, hint=LOOK) if shown.hint == BY_RUN else shown

        faults = tuple(
            explained(fault, judged.found, scene, diagnose, progress) for fault in faults
        )
        nonfinite: tuple[NonFinite, ...] = ()
        if ours.calls and theirs.calls:
            calls = (ours.calls, theirs.calls)
            nonfinite = first_nonfinite(case.name, alignment.matches, calls, judged.free, store)
        outputs, notes = root_outputs(called, store), weak_inputs(called, store)
    coverage = _of_traces(alignment.coverage, ours, theirs)
    return Outcome(
        rows=tuple(one.row for one in judged.found),
        faults=faults,
        coverage=with_deeper(coverage, choice.deeper),
        outputs=outputs,
        exercised=done,
        notes=(*stored.notes, *alignment.notes, *notes),
        nonfinite=nonfinite,
    )


def _sure(trace: Trace) -> Trace:
    """The trace: both were recorded in one layout, so that no axis is in question."""

    def sure(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        return tuple(replace(leaf, sure=True) for leaf in leaves)

    calls = (replace(c, inputs=sure(c.inputs), outputs=sure(c.outputs)) for c in trace.calls)
    return replace(trace, calls=tuple(calls))


def _of_traces(coverage: Coverage, ref: Trace, other: Trace) -> Coverage:
    """The coverage, of traces: what only one of them calls is not inlined in the other, as far as
    can be known.
    """
    ours, theirs = ({call.path for call in trace.calls} for trace in (ref, other))
    alone = {path: "first" if path in ours else "second"
             for path in coverage.dissolved if (path in ours) != (path in theirs)}  # fmt: skip
    missing = [f"{path}: only the {which} trace has calls of it" for path, which in alone.items()]
    return replace(
        coverage,
        unmatched_calls=(*coverage.unmatched_calls, *missing),
        dissolved={path: why for path, why in coverage.dissolved.items() if path not in alone},
    )
