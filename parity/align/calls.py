"""Which call and leaf of the port corresponds to which of the reference, and what has none."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from parity.align.taps import may_lack, tap_notes, with_taps
from parity.capture import layout as layout_rules
from parity.capture.recorder import join
from parity.core.calls import Call, Leaf, LeafMatch, Match, Trace
from parity.core.globs import ROOT, named, renamed, why
from parity.core.reasons import CONTAINER, IDLE, PORT_LACKS, REF_LACKS
from parity.core.verdicts import Coverage
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

    A call that receives other shapes than the reference's is dissolved: its code counts as that
    of its nearest matched ancestor, and its children stay aligned. `rename` maps globs of
    reference paths to the port's; `declared` maps globs of `path` or `path#leaf` to the reason
    why they need no counterpart; `rules` say which tensors the port holds in another number of
    arrays, so that it need not have their modules; `tied` is as in `fold`.
    """
    folding = fold(ref.modules, port.modules, {p: renamed(p, rename) for p in ref.modules}, tied)
    folding = with_taps(folding, ref, port, rename)
    by_key = {(call.path, call.number): call for call in port.calls}
    matches: list[Match] = []
    missing: list[str] = []
    lacking: dict[bool, list[str]] = {True: [], False: []}  # taps, and modules that taps stand for
    dissolved: dict[str, str] = {}
    kept: set[int] = set()
    for call in ref.calls:
        if call.tapped and call.parent == -1:
            continue  # in the code of a module that is not judged
        path = folding.partners.get(call.path)
        partner = None if path is None else by_key.pop((path, call.number), None)
        if partner is None:
            if why(call.path, declared) is not None:
                continue
            if may_lack(call, path, port):
                where = call.path if call.tapped else f"{call.path} call {call.number}"
                lacking[call.tapped].append(where)
            else:
                missing.append(
                    f"{call.path or '<root>'} call {call.number}: the port made no such call"
                )
            continue
        inputs = match_inputs(call.inputs, partner.inputs)
        other = next((m.problem for m in inputs if m.problem.startswith("shape")), "")
        if other and call.parent != -1:
            dissolved.setdefault(call.path, f"receives another {other}")
            continue
        outputs = match_outputs(
            call.path, call.outputs, partner.outputs, declared, as_they_are=call.tapped
        )
        matches.append(Match(call, partner, inputs, outputs, call.parent))
        kept.add(call.order)
    inlined = _inlined(ref, port, folding, rules) if inlining else {}
    missing = [text for text in missing if text.split(" call ")[0] not in inlined]
    dissolved |= {path: why for path, why in inlined.items() if path not in dissolved}
    known = set(folding.partners.values())
    inside = {folding.partners.get(path, path) for path in inlined}
    extra = [
        f"{path or '<root>'} call {number}: the reference made no such call"
        for (path, number), call in by_key.items()
        if why(path, declared) is None and (not inlining or (path in known and path not in inside))
        if not call.tapped
    ]
    spare = [path for (path, _), call in by_key.items()
             if call.tapped and call.parent != -1 and why(path, declared) is None]  # fmt: skip
    matches = [_adopt(match, ref.calls, kept) for match in matches]
    # a tap in a part whose outermost call was not matched is in the code of no call
    matches = [m for m in matches if m.parent != -1 or not (m.ref.tapped or m.port.tapped)]
    dissolved |= _added(ref, port, folding) if inlining else {}
    coverage = _coverage(ref, port, matches, dissolved, [*missing, *extra], folding, declared)
    notes = (*_by_order(matches), *tap_notes(lacking[True], lacking[False], spare, port))
    return Alignment(tuple(matches), coverage, notes)


def _inlined(ref: Trace, port: Trace, folding: Folding, rules: Sequence[Rule]) -> dict[str, str]:
    """Modules that one side calls and the other does not: a function does their work.

    What that function gets wrong is charged to the call around it. A module with tensors of its
    own that the port has nowhere is not inlined but missing.
    """
    theirs, ours = {call.path for call in ref.calls}, {call.path for call in port.calls}
    found: dict[str, str] = {}
    for path, info in ref.modules.items():
        partner = folding.partners.get(path)
        if path in theirs and partner not in ours and path:
            own = [join(path, name) for name in (*info.parameters, *info.buffers)]
            held = path in folding.ref or all(in_rules(name, rules) for name in own)
            if partner in port.hidden:
                found[path] = "the port calls it under jax.vmap: counted with the call around it"
            elif partner is not None or held:
                found[path] = "the port does not call it: counted with the call around it"
        elif path not in theirs and partner in ours and path:
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
    theirs, ours = _by_parameter(ref), _by_parameter(port)
    pairs = [(theirs.pop(name), ours.pop(name)) for name in list(theirs) if name in ours]
    found: list[LeafMatch] = []
    if len(theirs) == len(ours):
        pairs += list(zip(theirs.values(), ours.values(), strict=True))
    else:  # `*args` on one side hold what the other names one by one
        one, other = (filter(_is_array, chain(*groups.values())) for groups in (theirs, ours))
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
    ours = {leaf.name: leaf for leaf in port}
    partners = {leaf.name: ours[leaf.name] for leaf in ref if leaf.name in ours}
    if not partners:
        arrays = zip(filter(_is_array, ref), filter(_is_array, port), strict=False)
        partners = {theirs.name: mine for theirs, mine in arrays}
    found: list[LeafMatch] = []
    for leaf in ref:
        partner = partners.get(leaf.name)
        if partner is not None and _is_array(partner) == _is_array(leaf):
            match = _pair(leaf, partner, as_they_are)
            if match is not None:
                found.append(match)
        elif _is_array(leaf):
            found.append(LeafMatch(leaf, partner, problem=PORT_LACKS))
        elif partner is not None:
            found.append(LeafMatch(partner, partner, problem=REF_LACKS))
        elif leaf.value is not None:
            found.append(LeafMatch(leaf, None, problem=PORT_LACKS))
    used = {leaf.name for leaf in partners.values()}
    spare = [leaf for leaf in port if leaf.name not in used and _is_array(leaf)]
    found += [LeafMatch(leaf, leaf, problem=REF_LACKS) for leaf in spare]
    return tuple(
        replace(m, declared=why(path, declared) or why(f"{path}#{m.ref.name}", declared) or "")
        for m in found
    )


def _by_order(matches: Iterable[Match]) -> tuple[str, ...]:
    """Of outputs that both sides name, and otherwise, that they were paired by order.

    A place in a tuple is no name.
    """
    found: dict[str, None] = {}
    for match in matches:
        pairs = [(leaf.ref.name, leaf.port.name) for leaf in match.outputs if leaf.port is not None]
        pairs = [pair for pair in pairs if pair[0] != pair[1] and all(map(_has_key, pair))]
        if pairs:
            theirs, ours = (named(list(names)) for names in zip(*pairs, strict=True))
            where = f"`{match.ref.path or ROOT}`"
            found[f"{where} returns {theirs}, the port {ours}: compared in this order"] = None
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
    mine = [leaf for leaf in port if _is_array(leaf)]
    arrays = [leaf for leaf in ref if _is_array(leaf)]
    by_suffix = {_suffix(leaf): leaf for leaf in mine}
    pairs = [(leaf, by_suffix[_suffix(leaf)]) for leaf in arrays if _suffix(leaf) in by_suffix]
    return _matched(pairs or zip(arrays, mine, strict=False))


def _matched(pairs: Iterable[tuple[Leaf, Leaf]]) -> list[LeafMatch]:
    matches = (_pair(*pair) for pair in pairs)
    return [match for match in matches if match is not None]


def _suffix(leaf: Leaf) -> str:
    return leaf.name.partition(".")[2]


def _pair(ref: Leaf, port: Leaf, as_they_are: bool = False) -> LeafMatch | None:
    """Compare what can be told without the values: shape, class of dtype, layout."""
    if ref.buffer is None or port.buffer is None:
        opaque = [x.value for x in (ref, port) if not isinstance(x.value, PLAIN)]
        if opaque:
            problem = f"not compared: {type(opaque[0]).__name__} is no array or plain value"
            return LeafMatch(ref, port, problem=problem)
        problem = f"value {port.value!r} instead of {ref.value!r}"
        return None if same_value(ref.value, port.value) else LeafMatch(ref, port, problem=problem)
    theirs, ours = ref.buffer.shape, port.buffer.shape
    undo = False
    if not ref.sure:
        other = layout_rules.unmoved(theirs) if ref.moved else layout_rules.moved(theirs)
        if other == theirs == ours and not as_they_are:
            problem = f"layout: axis 1 of {theirs} may be the channel or not; {LAYOUT_HINT}"
            return LeafMatch(ref, port, problem=problem)
        if other == ours != theirs:
            if not ref.moved:
                problem = f"layout: {ours} is {theirs} with axis 1 moved to last; {LAYOUT_HINT}"
                return LeafMatch(ref, port, problem=problem)
            undo = True
    if theirs != ours and not undo:
        return LeafMatch(ref, port, problem=f"shape {ours} instead of {theirs}")
    if _dtype_class(ref.buffer.dtype.name) != _dtype_class(port.buffer.dtype.name):
        problem = f"dtype {port.buffer.dtype} instead of {ref.buffer.dtype}"
        return LeafMatch(ref, port, problem=problem)
    return LeafMatch(ref, port, undo=undo)


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


def _adopt(match: Match, calls: Sequence[Call], kept: set[int]) -> Match:
    parent = match.parent
    while parent != -1 and parent not in kept:
        parent = calls[parent].parent
    return replace(match, parent=parent)


def _coverage(
    ref: Trace,
    port: Trace,
    matches: Sequence[Match],
    dissolved: Mapping[str, str],
    unmatched_calls: list[str],
    folding: Folding,
    declared: Mapping[str, str],
) -> Coverage:
    compared = {match.ref.path for match in matches if _observed(match)}
    called = {call.path for call in ref.calls}
    busy = {call.path for call in port.calls}
    leaves = {m.ref.path: leaf.declared for m in matches for leaf in m.outputs if leaf.declared}
    settled: dict[str, str] = {}
    unmatched: list[str] = []
    for path, info in ref.modules.items():
        if path in compared or path in dissolved:
            continue
        reason = why(path, declared) or leaves.get(path)
        partner = folding.partners.get(path)
        if reason is None and info.container:
            reason = CONTAINER
        # no declaration makes up for a run of what both sides have
        if (reason is None or (partner is not None and not info.container)) and (
            path not in called and partner not in busy
        ):
            reason = IDLE
        if reason is None:
            unmatched.append(path)
        else:
            settled[path] = reason
    return Coverage(
        modules=len(ref.modules),
        matched=tuple(path for path in ref.modules if path in compared),
        declared=settled,
        unmatched=tuple(unmatched),
        dissolved={path: reason for path, reason in dissolved.items() if path not in compared},
        calls=len(ref.calls),
        matched_calls=len(matches),
        unmatched_calls=tuple(unmatched_calls),
    )


def _observed(match: Match) -> bool:
    """Whether a value was compared: not if each is returned by one side only, or left out."""
    lacking = [
        bool(leaf.declared) or leaf.problem in (PORT_LACKS, REF_LACKS) for leaf in match.outputs
    ]
    return not lacking or not all(lacking)
