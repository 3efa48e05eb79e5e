"""Leaves and weights that a declaration leaves out although both sides have them.

Declarations are for what has no counterpart. Of anything else nobody looks at what it gets wrong,
so a report names it, and does not pass.
"""

from collections.abc import Iterable, Mapping, Sequence

from parity.core.calls import LeafMatch, Match, above
from parity.core.globs import named, path_name
from parity.core.tensors import Weight

WITHOUT = "judged without {}, which ignore= leaves out though both sides have it"


def chosen(leaf: LeafMatch) -> bool:
    """True if a declaration is all that keeps a leaf from being judged."""
    return bool(leaf.declared) and not leaf.only_on


def left_out(matches: Iterable[Match]) -> tuple[str, ...]:
    """The paths whose outputs are left out, `path#leaf` where others of the call are judged."""
    found: dict[str, None] = {}
    for match in matches:
        path = path_name(match.ref.path)
        leaves = [leaf.ref.name for leaf in match.outputs if chosen(leaf)]
        if leaves and len(leaves) == len(match.outputs):
            found[path] = None
        else:
            found |= dict.fromkeys(f"{path}#{leaf}" for leaf in leaves)
    return tuple(found)


def around(matches: Sequence[Match]) -> Mapping[int, str]:
    """By the `order` of each call with something left out inside it, the path of the first."""
    parents = {match.ref.order: match.parent for match in matches}
    found: dict[int, str] = {}
    for match in matches:
        if any(map(chosen, match.outputs)):
            for order in above(match.parent, parents):
                found.setdefault(order, match.ref.path)
    return found


def left_out_note(names: Sequence[str], weights: Sequence[Weight]) -> str:
    """A note on a report without these, and without weights that differ; `""` if there are none."""
    known = {name.partition("#")[0] for name in names}
    differ = [
        line.name
        for line in weights
        if line.paired and line.finding and line.declared and path_name(line.path) not in known
    ]
    found = [*dict.fromkeys(names), *dict.fromkeys(differ)]
    if not found:
        return ""
    return (
        f"a part only: ignore= is for what has no counterpart, and both sides have {named(found)}; "
        "of that this report says nothing"
    )
