"""Compare two golden traces: what another version, machine or edit of the reference changes.

Neither model runs. The first trace is the reference, the second stands in place of the port.
"""

from dataclasses import replace
from pathlib import Path

from parity.core.exceptions import InputError
from parity.core.pair import Case
from parity.core.plain import encode
from parity.host.progress import Progress
from parity.options.options import Options
from parity.report import Report
from parity.run.assemble import Comparison
from parity.run.loop import Usage, run_cases
from parity.run.records import Outcome
from parity.traces.index import Index, StoredCase
from parity.traces.recorded_port import SecondTrace
from parity.traces.recorded_reference import Recorded
from parity.traces.trace import Golden, open_trace

LOOK = "look at what differs in the code of this module"


def compare_traces(before: Path, after: Path, *, progress: Progress | None = None) -> Report:
    """Report of the second trace against the first, call by call.

    Raises:
        InputError: one cannot be used, or they are not of one pair, one choice of modules and the
            same inputs.
    """
    progress, usage = progress or Progress(), Usage()
    progress.stage("checking the files of the traces")
    ref, other = open_trace(before), open_trace(after)
    _check_alike(ref, other)
    both = ref.cases.keys() & other.cases.keys()
    missing = [
        f"only {golden.folder} has the case {case.name}"
        for golden in (ref, other)
        for case in golden.index.cases
        if case.key not in both
    ]
    if not both:
        raise InputError(f"{before} and {after}: have no case in common")

    def finish(outcome: Outcome) -> Outcome:
        """The first outcome says which cases the other trace lacks."""
        lost = (*outcome.coverage.unmatched_calls, *missing)
        missing.clear()
        return replace(outcome, coverage=replace(outcome.coverage, unmatched_calls=lost))

    comparison = Comparison(
        f"{before.name} against {after.name}",
        Recorded(ref, LOOK),
        SecondTrace(other),
        Options(only=ref.index.only, depth=ref.index.depth, layout=ref.index.layout),
        {**other.index.environment, "reference": dict(ref.index.environment)},
        {**ref.index.facts, "reference": str(before), "port": f"the trace {after}"},
    )
    cases = [_case(case) for case in ref.index.cases if case.key in both]
    gaps = ref.index.gaps
    return run_cases(comparison, cases, progress, usage, finish=finish, gaps=lambda _: gaps)


def _case(stored: StoredCase) -> Case:
    return Case(stored.name, path=stored.path, depth=stored.depth, r_limit=stored.r_limit)


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
    differ = [key for key, case in ref.cases.items() if _differ(case, other.cases.get(key))]
    if differ:
        name, path = differ[0]
        called = f" of {path}" if path else ""
        raise InputError(
            f"{ref.folder} and {other.folder}: of other inputs in {len(differ)} cases,"
            f" {name}{called} first{_why(a, b)}; record both with the same options and seed"
        )


def _differ(one: StoredCase, other: StoredCase | None) -> bool:
    """True if a pair gave other inputs to a case, other than by what cases before made of them."""
    if other is None or not (one.free and other.free):
        return False
    return (encode(one.arguments), one.given) != (encode(other.arguments), other.given)


def _why(a: Index, b: Index) -> str:
    """In what the requests differ that decide on the inputs."""
    before, after = ({**index.facts, "seed": index.environment["seed"]} for index in (a, b))
    words = [
        f"{name} {before.get(name)} and {after.get(name)}"
        for name in ("input", "seed", "weights", "config")
        if before.get(name) != after.get(name)
    ]
    return f" ({'; '.join(words)})" if words else ""
