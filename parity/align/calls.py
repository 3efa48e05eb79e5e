"""Calls and leaves of the port paired with those of the reference, and what has no counterpart."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parity.align.axis_order_notes import order_notes
from parity.align.leaves import match_inputs, match_outputs, rank, read_alike
from parity.align.readings import Axes, Returned, Values, order_of, orders_given, returns_same
from parity.align.taps import may_lack, tap_notes, with_taps
from parity.core.arrays import comparable
from parity.core.calls import Call, LeafMatch, Match, Trace, above
from parity.core.globs import named, path_name, why
from parity.core.problems import ProblemKind, other_shape
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.core.verdicts import CONTAINER, EMPTY, IDLE, Coverage
from parity.weights.module_map import Folding, fold

RAISED = "its calls raise what is caught around them: counted with the call around it"


@dataclass(frozen=True)
class Alignment:
    """Matched calls in the order of completion of the reference, and the coverage of calls.

    `notes` are sentences on taps that were not compared, and on outputs whose order of axes is in
    doubt. `port_of` maps the reference's modules to the port's.
    """

    matches: tuple[Match, ...]
    coverage: Coverage
    notes: tuple[str, ...] = ()
    port_of: Mapping[str, str] = field(default_factory=dict)


def align(
    ref: Trace,
    port: Trace,
    *,
    rename: Mapping[str, str],
    declared: Mapping[str, str],
    weight_map: Sequence[Weight] = (),
    store: Store | None = None,
    inlining: bool = True,
) -> Alignment:
    """Match the calls of modules that hold the same, by number.

    A call that receives other shapes than the reference's is inlined: its code counts as that
    of its nearest matched ancestor, and its children stay aligned. `rename` maps globs of
    reference paths to the port's; `declared` maps globs of `path` or `path#leaf` to the reason
    why they need no counterpart. Values in the `store` decide where shapes and names do not.
    Without `inlining`, a module that one side alone calls is missing.
    """
    (ref, raised), (port, port_raised) = _returned(ref), _returned(port)
    both = ref.calls and port.calls
    orders = orders_given(ref.calls[-1], port.calls[-1], store) if both else ()
    values = Values(store, orders)  # at the door; inside there may be heads
    returned = Returned(ref.calls, port.calls, values)
    folding = fold(ref.modules, port.modules, weight_map, rename, returned)
    folding = with_taps(folding, ref, port, rename)
    found = _Pairing(ref, port, folding, declared, (values, Values(store, orders, heads=True)))
    for call in ref.calls:
        if not call.tapped or call.parent != -1:  # else in the code of a module that is not judged
            found.add(call)
    absent = _absent(ref, port, folding) if inlining else {}
    missing = [call for call in found.missing if call.path not in absent]
    extra = found.extra(absent) if inlining else found.left()
    unmatched = [
        *(_unmatched(call, "the port") for call in missing),
        *(_unmatched(call, "the reference") for call in extra if not call.tapped),
    ]
    inlined = dict(found.inlined)
    for path, reason in absent.items():
        inlined.setdefault(path, reason)
    for path in ref.modules:
        if path in raised or folding.port_of.get(path) in port_raised:
            inlined.setdefault(path, RAISED)
    matches = found.adopted(ref.calls)
    paired = {match.port.path for match in matches}
    added = _added(ref, port, folding) if inlining else {}
    inlined |= {path: reason for path, reason in added.items() if path not in paired}
    notes = tap_notes(*found.lacking, found.spare_taps(), port)
    coverage = _coverage(ref, port, matches, inlined, folding, declared)
    coverage = replace(
        coverage,
        unmatched_calls=tuple(unmatched),
        remarks=tuple(found.remarks()),
    )
    notes = (*notes, *order_notes(matches, ref.calls))
    return Alignment(matches, coverage, notes, folding.port_of)


def _of_one_rank(leaf: LeafMatch) -> LeafMatch:
    """An output of the called model: whoever calls it relies on how many axes it has."""
    ref, port = comparable(leaf) or (None, None)
    if ref is None or port is None or len(ref.shape) == len(port.shape):
        return leaf
    return replace(leaf, reading=None, problem=other_shape(ref.shape, port.shape))


def _returned(trace: Trace) -> tuple[Trace, set[str]]:
    """The trace without the calls that raised, and those inside them, and who has no others."""
    parents = {call.order: call.parent for call in trace.calls}
    raised = {call.order for call in trace.calls if call.raised}
    calls = [call for call in trace.calls if raised.isdisjoint(above(call.order, parents))]
    lost = {call.path for call in trace.calls} - {call.path for call in calls}
    return replace(trace, calls=tuple(calls)), lost


def _unmatched(call: Call, other: str) -> str:
    return f"{path_name(call.path)} call {call.number}: {other} made no such call"


class _Pairing:
    """Calls of the reference paired with the port's, and what each side has alone."""

    def __init__(
        self,
        ref: Trace,
        port: Trace,
        folding: Folding,
        declared: Mapping[str, str],
        values: tuple[Values, Values],
    ) -> None:
        self._port, self._folding, self._declared = port, folding, declared
        self._port_of, self._at_door, self._values = folding.port_of, *values
        self._spare = {(call.path, call.number): call for call in port.calls}
        self._counts = Counter(call.path for call in ref.calls)
        self._port_counts = Counter(call.path for call in port.calls)
        self._orders: dict[object, Axes] = {}
        """The order of PyTorch's axes in which arrays lie that calls of the port returned."""
        self._matches: list[Match] = []
        self.missing: list[Call] = []
        self.lacking: tuple[list[str], list[str]] = ([], [])
        """Taps that the port lacks, and calls of modules that taps of the port stand for."""
        self._alone: dict[str, dict[str, None]] = {"reference": {}, "port": {}}
        self.inlined: dict[str, str] = {}

    def add(self, call: Call) -> None:
        """Pair a call of the reference, if the port made it on inputs of the same shapes."""
        path = self._port_of.get(call.path)
        port = None if path is None else self._counterpart(call, path)
        port = port or self._of_copies(call)
        if port is None:
            self._lacks(call, path)
            return
        values = self._at_door if call.parent == -1 else self._values
        inputs = match_inputs(call.inputs, port.inputs, values)
        inputs = read_alike(inputs, self._orders, values)
        problems = (leaf.problem for leaf in inputs if leaf.problem is not None)
        shape = next((one for one in problems if one.kind is ProblemKind.SHAPE), None)
        if shape is not None and call.parent != -1:
            self.inlined.setdefault(call.path, f"receives another {shape}")
            return
        outputs = match_outputs(call.path, call.outputs, port.outputs, self._declared, values)
        orders = ((rank(leaf), order_of(leaf.ref, leaf.reading)) for leaf in inputs)
        known = {axes: order for axes, order in orders if order is not None}
        outputs = read_alike(outputs, known, values)
        for leaf in outputs:
            order = order_of(leaf.ref, leaf.reading)
            if leaf.port and leaf.port.buffer and order is not None and leaf.problem is None:
                self._orders.setdefault(leaf.port.buffer, order)
        if call.parent == -1:
            outputs = tuple(map(_of_one_rank, outputs))
        elif any(not leaf.only_on for leaf in outputs):
            for leaf in outputs:
                if leaf.only_on:
                    self._alone[leaf.only_on][f"{path_name(call.path)}#{leaf.ref.name}"] = None
            outputs = tuple(leaf for leaf in outputs if not leaf.only_on)
        turn = self._folding.turn_of.get(call.path, (None, 1))[0]
        self._matches.append(Match(call, port, inputs, outputs, call.parent, turn))

    def _counterpart(self, call: Call, path: str) -> Call | None:
        """The port's call: of that number, or if one side makes more, what returns the same."""
        turn, turns = self._folding.turn_of.get(call.path, (0, 1))
        count = self._counts[call.path]
        number = call.number * turns + turn
        if self._port_counts[path] not in (count * turns, 0) or turns > 1:
            if turns > 1 and self._port_counts[path] != count * turns:
                return None
            spare = [one for (name, _), one in self._spare.items() if name == path]
            same = (one for one in spare if turns == 1 and self._same(call, one))
            otherwise = -1 if _does_nothing(call) else number
            number = next((one.number for one in same), otherwise)
        return self._spare.pop((path, number), None)

    def _of_copies(self, call: Call) -> Call | None:
        """A call that is left of a module with the same tensors: what returns the same, or fits."""
        names = self._folding.alike.get(call.path, ())
        left = [one for one in self._spare.values() if one.path in names]

        def fits(one: Call) -> bool:
            pairs = match_inputs(call.inputs, one.inputs, self._values)
            return not any(leaf.problem for leaf in pairs)

        same = (one for one in left if self._same(call, one))
        found = next(same, None) or next(filter(fits, left), None)
        return None if found is None else self._spare.pop((found.path, found.number))

    def remarks(self) -> Iterator[str]:
        """A sentence for each side on outputs inside that it alone returns."""
        for side, leaves in self._alone.items():
            if leaves:
                yield f"not compared, only the {side} returns it inside: {named([*leaves])}"

    def _same(self, ref: Call, port: Call) -> bool:
        return returns_same(ref, port, self._values)

    def _lacks(self, call: Call, port_path: str | None) -> None:
        if why(call.path, self._declared) is not None or _does_nothing(call):
            return
        if not may_lack(call, port_path, self._port):
            self.missing.append(call)
        elif call.tapped:
            self.lacking[0].append(call.path)
        else:
            self.lacking[1].append(f"{call.path} call {call.number}")

    def extra(self, absent: Collection[str]) -> list[Call]:
        """Calls that the port makes more of modules that both sides have and that are matched."""
        known = set(self._port_of.values()) - {self._port_of.get(p, p) for p in absent}
        left = (call for call in self.left() if call.path in known)
        return [call for call in left if not _does_nothing(call)]

    def spare_taps(self) -> list[str]:
        """Taps that only the port has."""
        return [call.path for call in self.left() if call.tapped and call.parent != -1]

    def left(self) -> list[Call]:
        """Calls and taps of the port that match nothing and are not declared."""
        return [call for call in self._spare.values() if why(call.path, self._declared) is None]

    def adopted(self, calls: Sequence[Call]) -> tuple[Match, ...]:
        """The matches, each with the nearest call around it that is matched."""
        kept = {match.ref.order for match in self._matches}
        parents = {call.order: call.parent for call in calls}
        matches = (
            replace(match, parent=next(filter(kept.__contains__, above(match.parent, parents)), -1))
            for match in self._matches
        )
        # a tap in a part whose outermost call was not matched is in the code of no call
        return tuple(
            one for one in matches if one.parent != -1 or not (one.ref.tapped or one.port.tapped)
        )


def _does_nothing(call: Call) -> bool:
    """True of a call that returns what it was given, as dropout does in evaluation."""
    given = {leaf.buffer for leaf in call.inputs if leaf.buffer}
    returned = [leaf.buffer for leaf in call.outputs]
    return not call.tapped and bool(returned) and all(one in given for one in returned)


def _absent(ref: Trace, port: Trace, folding: Folding) -> dict[str, str]:
    """Modules that one side calls and the other does not: a function does their work.

    What that function gets wrong is charged to the call around it. A module with tensors of its
    own that the port has nowhere is not inlined but missing.
    """
    called, busy = {call.path for call in ref.calls}, {call.path for call in port.calls}
    found: dict[str, str] = {}
    for path in ref.modules:
        port_path = folding.port_of.get(path)
        if path in called and port_path not in busy and path:
            held = path in folding.held
            if port_path in port.hidden:
                found[path] = "the port calls it transformed: counted with the call around it"
            elif port_path is not None or held:
                found[path] = "the port does not call it: counted with the call around it"
        elif path not in called and port_path in busy and path:
            found[path] = "the reference does not call it: counted with the call around it"
    return found


def _added(ref: Trace, port: Trace, folding: Folding) -> dict[str, str]:
    """Modules that the port calls and the reference does not have."""
    known = set(folding.port_of.values())
    extra = dict.fromkeys(
        call.path for call in port.calls if call.path not in known and not call.tapped
    )
    return {
        path: "only the port has it: counted with the module around it"
        for path in extra
        if path not in ref.modules
    }


def _coverage(
    ref: Trace,
    port: Trace,
    matches: Sequence[Match],
    inlined: Mapping[str, str],
    folding: Folding,
    declared: Mapping[str, str],
) -> Coverage:
    compared = {match.ref.path for match in matches if _observed(match)}
    left = [path for path in ref.modules if path not in compared and path not in inlined]
    reasons = _reasons(left, ref, matches, declared)
    # no declaration makes up for a run of what both sides have
    held = {path for path in left if path in folding.port_of and not ref.modules[path].container}
    idle = [path for path in _idle(left, ref, port, folding) if path not in reasons or path in held]
    empty = [path for path in idle if path in folding.bare]
    idle = [path for path in idle if path not in empty]
    reasons |= {**dict.fromkeys(idle, IDLE), **dict.fromkeys(empty, EMPTY)}
    return Coverage(
        modules=len(ref.modules),
        matched=tuple(path for path in ref.modules if path in compared),
        declared={path: reasons[path] for path in left if path in reasons},
        unmatched=tuple(path for path in left if path not in reasons),
        inlined={path: reason for path, reason in inlined.items() if path not in compared},
        calls=len(ref.calls),
        matched_calls=len(matches),
        idle=tuple(idle),
    )


def _reasons(
    paths: Iterable[str], ref: Trace, matches: Iterable[Match], declared: Mapping[str, str]
) -> dict[str, str]:
    """The reasons of modules that need no counterpart: declared, as containers, or by a leaf."""
    leaves = {m.ref.path: leaf.declared for m in matches for leaf in m.outputs if leaf.declared}
    found: dict[str, str] = {}
    for path in paths:
        reason = why(path, declared) or leaves.get(path)
        if reason or ref.modules[path].container:
            found[path] = reason or CONTAINER
    return found


def _idle(paths: Iterable[str], ref: Trace, port: Trace, folding: Folding) -> list[str]:
    """The modules that neither side calls."""
    called, busy = ({call.path for call in trace.calls} for trace in (ref, port))
    port_of = folding.port_of
    return [path for path in paths if path not in called and port_of.get(path) not in busy]


def _observed(match: Match) -> bool:
    """False if each value is returned by one side only, or left out."""
    lacking = [bool(leaf.declared or leaf.only_on) for leaf in match.outputs]
    return not lacking or not all(lacking)
