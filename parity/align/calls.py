"""Calls and leaves of the port paired with those of the reference, and what has no counterpart."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from parity.align.taps import may_lack, tap_notes, with_taps
from parity.capture import layout as layout_rules
from parity.capture.recorder import join
from parity.core.calls import Call, Leaf, LeafMatch, Match, Trace, above
from parity.core.globs import named, path_name, renamed, why
from parity.core.problems import (
    PORT_LACKS,
    REF_LACKS,
    Problem,
    ProblemKind,
    other_shape,
    other_value,
)
from parity.core.verdicts import CONTAINER, IDLE, Coverage
from parity.weights.fused import Rule, in_rules
from parity.weights.module_map import Folding, fold

LAYOUT_HINT = "say so with layout={'<path>': 'channels_first' or 'as_is'}"


@dataclass(frozen=True)
class Alignment:
    """Matched calls in the order of completion of the reference, and the coverage of calls.

    `notes` are sentences on taps that were not compared, and on outputs that have other names.
    """

    matches: tuple[Match, ...]
    coverage: Coverage
    notes: tuple[str, ...] = ()


def align(
    ref: Trace,
    port: Trace,
    *,
    rename: Mapping[str, str],
    declared: Mapping[str, str],
    rules: Sequence[Rule] = (),
    tied: Mapping[str, str] | None = None,
    inlining: bool = True,
) -> Alignment:
    """Match by path and call number.

    A call that receives other shapes than the reference's is inlined: its code counts as that
    of its nearest matched ancestor, and its children stay aligned. `rename` maps globs of
    reference paths to the port's; `declared` maps globs of `path` or `path#leaf` to the reason
    why they need no counterpart; `rules` say which tensors the port holds in another number of
    arrays, so that it need not have their modules; `tied` is as in `fold`. Without `inlining`, a
    module that one side alone calls is missing.
    """
    folding = fold(ref.modules, port.modules, {p: renamed(p, rename) for p in ref.modules}, tied)
    folding = with_taps(folding, ref, port, rename)
    found = _Pairing(port, folding, declared)
    for call in ref.calls:
        if not call.tapped or call.parent != -1:  # else in the code of a module that is not judged
            found.add(call)
    absent = _absent(ref, port, folding, rules) if inlining else {}
    missing = [call for call in found.missing if call.path not in absent]
    extra = found.extra(absent) if inlining else found.left()
    unmatched = [
        *(_unmatched(call, "the port") for call in missing),
        *(_unmatched(call, "the reference") for call in extra if not call.tapped),
    ]
    inlined = dict(found.inlined)
    for path, reason in absent.items():
        inlined.setdefault(path, reason)
    inlined |= _added(ref, port, folding) if inlining else {}
    matches = found.adopted(ref.calls)
    notes = (*_by_order(matches), *tap_notes(*found.lacking, found.spare_taps(), port))
    coverage = _coverage(ref, port, matches, inlined, folding, declared)
    return Alignment(matches, replace(coverage, unmatched_calls=tuple(unmatched)), notes)


def _unmatched(call: Call, other: str) -> str:
    return f"{path_name(call.path)} call {call.number}: {other} made no such call"


class _Pairing:
    """Calls of the reference paired with the port's, and what each side has alone."""

    def __init__(self, port: Trace, folding: Folding, declared: Mapping[str, str]) -> None:
        self._port, self._partners, self._declared = port, folding.partners, declared
        self._spare = {(call.path, call.number): call for call in port.calls}
        self._matches: list[Match] = []
        self.missing: list[Call] = []
        self.lacking: tuple[list[str], list[str]] = ([], [])
        """Taps that the port lacks, and calls of modules that taps of the port stand for."""
        self.inlined: dict[str, str] = {}

    def add(self, call: Call) -> None:
        """Pair a call of the reference, if the port made it on inputs of the same shapes."""
        path = self._partners.get(call.path)
        partner = None if path is None else self._spare.pop((path, call.number), None)
        if partner is None:
            self._lacks(call, path)
            return
        inputs = match_inputs(call.inputs, partner.inputs)
        problems = (leaf.problem for leaf in inputs if leaf.problem is not None)
        shape = next((one for one in problems if one.kind is ProblemKind.SHAPE), None)
        if shape is not None and call.parent != -1:
            self.inlined.setdefault(call.path, f"receives another {shape}")
            return
        outputs = match_outputs(
            call.path, call.outputs, partner.outputs, self._declared, as_they_are=call.tapped
        )
        self._matches.append(Match(call, partner, inputs, outputs, call.parent))

    def _lacks(self, call: Call, partner: str | None) -> None:
        if why(call.path, self._declared) is not None:
            return
        if not may_lack(call, partner, self._port):
            self.missing.append(call)
        elif call.tapped:
            self.lacking[0].append(call.path)
        else:
            self.lacking[1].append(f"{call.path} call {call.number}")

    def extra(self, absent: Collection[str]) -> list[Call]:
        """Calls that the port makes more of modules that both sides have and that are matched."""
        known = set(self._partners.values()) - {self._partners.get(p, p) for p in absent}
        return [call for call in self.left() if call.path in known]

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


def _absent(ref: Trace, port: Trace, folding: Folding, rules: Sequence[Rule]) -> dict[str, str]:
    """Modules that one side calls and the other does not: a function does their work.

    What that function gets wrong is charged to the call around it. A module with tensors of its
    own that the port has nowhere is not inlined but missing.
    """
    called, busy = {call.path for call in ref.calls}, {call.path for call in port.calls}
    found: dict[str, str] = {}
    for path, info in ref.modules.items():
        partner = folding.partners.get(path)
        if path in called and partner not in busy and path:
            own = [join(path, name) for name in (*info.parameters, *info.buffers)]
            held = path in folding.ref or all(in_rules(name, rules) for name in own)
            if partner in port.hidden:
                found[path] = "the port calls it under jax.vmap: counted with the call around it"
            elif partner is not None or held:
                found[path] = "the port does not call it: counted with the call around it"
        elif path not in called and partner in busy and path:
            found[path] = "the reference does not call it: counted with the call around it"
    return found


def _added(ref: Trace, port: Trace, folding: Folding) -> dict[str, str]:
    """Modules that the port calls and the reference does not have."""
    known = set(folding.partners.values())
    extra = dict.fromkeys(
        call.path for call in port.calls if call.path not in known and not call.tapped
    )
    return {
        path: "only the port has it: counted with the module around it"
        for path in extra
        if path not in ref.modules
    }


def match_inputs(ref: Sequence[Leaf], port: Sequence[Leaf]) -> tuple[LeafMatch, ...]:
    """Pair arguments by parameter name, the remaining ones by order.

    Only leaves that both sides have are returned: what the port alone has keeps its value.
    """
    left, right = _by_parameter(ref), _by_parameter(port)
    pairs = [(left.pop(name), right.pop(name)) for name in list(left) if name in right]
    found: list[LeafMatch] = []
    if len(left) == len(right):
        pairs += list(zip(left.values(), right.values(), strict=True))
    else:  # `*args` on one side hold what the other names one by one
        one, other = (filter(_is_array, chain(*groups.values())) for groups in (left, right))
        found += _matched(zip(one, other, strict=False))
    for group, partners in pairs:
        found += _pair_leaves(group, partners)
    return tuple(found)


def match_outputs(
    path: str,
    ref: Sequence[Leaf],
    port: Sequence[Leaf],
    declared: Mapping[str, str],
    *,
    as_they_are: bool = False,
) -> tuple[LeafMatch, ...]:
    """Pair output leaves by name; if no name is common, arrays pair by order.

    So a bare array stands for the first array of a nested output. `as_they_are` says that axis 1 is
    the channel only where a declaration says so.
    """
    by_name = {leaf.name: leaf for leaf in port}
    partners = {leaf.name: by_name[leaf.name] for leaf in ref if leaf.name in by_name}
    if not partners:
        arrays = zip(filter(_is_array, ref), filter(_is_array, port), strict=False)
        partners = {one.name: other for one, other in arrays}
    found = [_match_output(leaf, partners.get(leaf.name), as_they_are) for leaf in ref]
    used = {leaf.name for leaf in partners.values()}
    spare = [leaf for leaf in port if leaf.name not in used and _is_array(leaf)]
    found += [LeafMatch(leaf, leaf, problem=REF_LACKS) for leaf in spare]
    return tuple(
        replace(m, declared=why(path, declared) or why(f"{path}#{m.ref.name}", declared) or "")
        for m in found
        if m is not None
    )


def _match_output(ref: Leaf, port: Leaf | None, as_they_are: bool) -> LeafMatch | None:
    """A leaf and its partner; `None` if there is nothing to compare."""
    if port is not None and _is_array(port) == _is_array(ref):
        return _pair(ref, port, as_they_are)
    if _is_array(ref):
        return LeafMatch(ref, port, problem=PORT_LACKS)
    if port is not None:
        return LeafMatch(port, port, problem=REF_LACKS)
    return None if ref.value is None else LeafMatch(ref, None, problem=PORT_LACKS)


def _by_order(matches: Iterable[Match]) -> tuple[str, ...]:
    """Of outputs that both sides name, and otherwise, that they were paired by order.

    A place in a tuple is no name.
    """
    found: dict[str, None] = {}
    for match in matches:
        pairs = [(leaf.ref.name, leaf.port.name) for leaf in match.outputs if leaf.port is not None]
        pairs = [pair for pair in pairs if pair[0] != pair[1] and all(map(_has_key, pair))]
        if pairs:
            ref, port = (named(list(names)) for names in zip(*pairs, strict=True))
            where = f"`{path_name(match.ref.path)}`"
            found[f"{where} returns {ref}, the port {port}: compared in this order"] = None
    return tuple(found)


def _has_key(name: str) -> bool:
    return any(part and not part.isdecimal() for part in name.split("."))


def _is_array(leaf: Leaf) -> bool:
    return leaf.buffer is not None


def _by_parameter(leaves: Sequence[Leaf]) -> dict[str, list[Leaf]]:
    groups: dict[str, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        groups[leaf.name.split(".")[0]].append(leaf)
    # A parameter that holds `None` or settings only has nothing to force.
    return {name: group for name, group in groups.items() if any(x.buffer for x in group)}


def _pair_leaves(ref: Sequence[Leaf], port: Sequence[Leaf]) -> list[LeafMatch]:
    """Pair the arrays of two arguments by what follows the parameter's name, else by order."""
    one, other = ([leaf for leaf in leaves if _is_array(leaf)] for leaves in (ref, port))
    by_suffix = {_suffix(leaf): leaf for leaf in other}
    pairs = [(leaf, by_suffix[_suffix(leaf)]) for leaf in one if _suffix(leaf) in by_suffix]
    return _matched(pairs or zip(one, other, strict=False))


def _matched(pairs: Iterable[tuple[Leaf, Leaf]]) -> list[LeafMatch]:
    matches = (_pair(*pair) for pair in pairs)
    return [match for match in matches if match is not None]


def _suffix(leaf: Leaf) -> str:
    return leaf.name.partition(".")[2]


def _pair(ref: Leaf, port: Leaf, as_they_are: bool = False) -> LeafMatch | None:
    """Compare what can be told without the values: shape, class of dtype, layout."""
    if ref.buffer is None or port.buffer is None:
        return _pair_values(ref, port)
    undo, problem = _layout(ref, ref.buffer.shape, port.buffer.shape, as_they_are)
    types = ref.buffer.dtype, port.buffer.dtype
    if problem is None and _dtype_class(types[0].name) != _dtype_class(types[1].name):
        text = f"dtype {types[1]} instead of {types[0]}"
        return LeafMatch(ref, port, problem=Problem(ProblemKind.DTYPE, text))
    return LeafMatch(ref, port, undo, problem)


def _pair_values(ref: Leaf, port: Leaf) -> LeafMatch | None:
    opaque = [x.value for x in (ref, port) if not isinstance(x.value, PLAIN)]
    if opaque:
        text = f"not compared: {type(opaque[0]).__name__} is no array or plain value"
        return LeafMatch(ref, port, problem=Problem(ProblemKind.OPAQUE, text))
    if same_value(ref.value, port.value):
        return None
    return LeafMatch(ref, port, problem=other_value(ref.value, port.value))


def _layout(
    leaf: Leaf, ref: tuple[int, ...], port: tuple[int, ...], as_they_are: bool
) -> tuple[bool, Problem | None]:
    """(if the move of the channel axis is to be undone, why the shapes do not fit)."""
    if not leaf.sure:
        other = layout_rules.unmoved(ref) if leaf.moved else layout_rules.moved(ref)
        if other == ref == port and not as_they_are:
            return False, _unsure(f"axis 1 of {ref} may be the channel or not")
        if other == port != ref:
            if leaf.moved:
                return True, None
            return False, _unsure(f"{port} is {ref} with axis 1 moved to last")
    return False, None if ref == port else other_shape(ref, port)


def _unsure(text: str) -> Problem:
    return Problem(ProblemKind.LAYOUT, f"layout: {text}; {LAYOUT_HINT}")


PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Values that can be compared without being arrays."""


def same_value(ref: object, port: object) -> bool:
    """Equal plain values; floats up to rounding. Other objects are not looked at."""
    if isinstance(ref, PLAIN) and not isinstance(ref, float):
        return ref == port
    if isinstance(ref, float):
        if not isinstance(port, (int, float)):
            return False
        return math.isclose(ref, port, rel_tol=1e-5) or (math.isnan(ref) and math.isnan(port))
    return True


def _dtype_class(name: str) -> str:
    # JAX without x64 has no 64-bit types: only the class can be compared.
    return name.rstrip("0123456789_").removeprefix("b") if name != "bool" else "bool"


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
    held = {path for path in left if path in folding.partners and not ref.modules[path].container}
    idle = [path for path in _idle(left, ref, port, folding) if path not in reasons or path in held]
    reasons |= dict.fromkeys(idle, IDLE)
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
    partners = folding.partners
    return [path for path in paths if path not in called and partners.get(path) not in busy]


def _observed(match: Match) -> bool:
    """False if each value is returned by one side only, or left out."""
    lacking = [bool(leaf.declared or leaf.only_on) for leaf in match.outputs]
    return not lacking or not all(lacking)
