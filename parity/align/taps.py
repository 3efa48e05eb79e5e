"""Taps of one side paired with taps or modules of the other, and those that match nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from parity.core.calls import Call, Match, Trace, above
from parity.core.globs import named, renamed
from parity.weights.module_map import Folding


def with_taps(folding: Folding, ref: Trace, port: Trace, rename: Mapping[str, str]) -> Folding:
    """The folding with counterparts for taps, and for modules that the other side has as a tap."""
    port_of = dict(folding.port_of)
    ref_taps, port_taps = _tapped(ref.calls), _tapped(port.calls)
    called = {call.path for call in port.calls}
    taken = set(port_of.values())
    for path in dict.fromkeys([*ref_taps, *ref.modules]):
        name = renamed(path, rename)
        wanted = called if path in ref_taps else port_taps
        # a module that holds its tensors and does not run is no rival of a tap
        if port_of.get(path, "") not in called - {""} and name in wanted and name not in taken:
            port_of[path] = name
            taken.add(name)
    turns = {path: one for path, one in folding.turn_of.items() if port_of[path] in called}
    turns = {path: one for path, one in turns.items() if port_of[path] == folding.port_of[path]}
    return replace(folding, port_of=port_of, turn_of=turns)


def may_lack(call: Call, port_path: str | None, port: Trace) -> bool:
    """True if the port need not make such a call: it is a tap, or one stands for it."""
    return call.tapped or port_path in _tapped(port.calls)


def tap_notes(
    lacking: Iterable[str], calls: Iterable[str], spare: Iterable[str], port: Trace
) -> tuple[str, ...]:
    """Notes on taps that were not compared.

    `lacking` are taps of the reference, `calls` are its calls of modules for which the port has a
    tap, but not at this call, and `spare` are the port's taps that match nothing.
    """
    found = (
        ("only the reference has tap", lacking, "not compared"),
        ("the port comes by no tap for", calls, "not compared"),
        ("only the port has tap", spare, "not compared"),
        ("the port has under a JAX transformation tap", sorted(port.untapped), "not recorded"),
    )
    listed = ((start, list(dict.fromkeys(paths)), end) for start, paths, end in found)
    return tuple(f"{start} {named(paths)}: {end}" for start, paths, end in listed if paths)


def tap_segments(matches: Sequence[Match], calls: Sequence[Call]) -> dict[int, str]:
    """The place of the code of each tap of the port, by the `order` of the reference's call.

    It begins where a call or a tap before it hands back the reference's values. `calls` are all
    that the port made.
    """
    found: dict[int, str] = {}
    if not any(match.port.tapped for match in matches):
        return found
    last: dict[int, str] = {}
    parents = {call.order: call.parent for call in calls}
    paths = {match.port.order: match.ref.path for match in matches}
    for match in sorted(matches, key=lambda match: match.port.order):
        around = next((x for x in above(match.port.parent, parents) if x in paths), -1)
        path = match.ref.path
        if match.port.tapped:
            owner = paths.get(around, "")
            prefix = f"{owner}." if owner else ""
            start = f"`{last[around].removeprefix(prefix)}`" if around in last else "its input"
            found[match.ref.order] = f"between {start} and `{path.removeprefix(prefix)}`"
        last[around] = path
    return found


def _tapped(calls: Iterable[Call]) -> frozenset[str]:
    return frozenset(call.path for call in calls if call.tapped)
