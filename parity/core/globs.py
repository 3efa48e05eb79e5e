"""Globs over dotted names: what they match, and what they make of a name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from parity.core.exceptions import InputError

ROOT = "<root>"
"""Name in reports of the called model itself, whose path is empty."""


SHOWN = 5
"""How many paths a note names."""


def path_name(path: str) -> str:
    """The path of a module in a text: the root has none."""
    return path or ROOT


def named(paths: Sequence[str]) -> str:
    """Some paths in a sentence."""
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(f"`{path}`" for path in paths[:SHOWN]) + more


def rooted(option: Any) -> Any:
    """An option with globs, alone or in a mapping, with the root's path for its name.

    `<root>` and `<root>#leaf` are taken so.
    """
    if isinstance(option, Mapping):
        return {rooted(glob): rooted(value) for glob, value in option.items()}
    if isinstance(option, (list, tuple)):
        return tuple(map(rooted, option))
    if not isinstance(option, str):
        return option
    path, mark, leaf = option.partition("#")
    return f"{mark}{leaf}" if path == ROOT else option


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """The name that the most specific glob makes of `name`, which stays if none matches.

    Each `*` of the target repeats what the glob's held; what the target has no `*` for is dropped.
    No glob renames the root, only `""` itself.
    """
    if not name:
        return rename.get("", "")
    pattern = most_specific(rename, (name,), matches)
    if pattern is None:
        return name
    target = rename[pattern]
    for part in captured(pattern, name) or ():
        target = target.replace("*", part, 1)
    return target


def captured(pattern: str, name: str) -> tuple[str, ...] | None:
    """The text that each `*` of the pattern holds; `None` if it does not match.

    The first holds as much as it can, then the next. A regular expression would say the same, but
    some take years, and a pattern may be a file's.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return () if name == first else None
    last, rest = parts.pop(), name.removeprefix(first)
    if len(rest) + len(first) != len(name) or not rest.endswith(last):
        return None
    held, rest = [], rest[: len(rest) - len(last)]
    for part in reversed(parts):
        at = rest.rfind(part)
        if at < 0:
            return None
        held.append(rest[at + len(part) :])
        rest = rest[:at]
    return (rest, *reversed(held))


def why(name: str, declared: Mapping[str, str]) -> str | None:
    """The reason given for the most specific glob that matches `name`, if one does."""
    glob = most_specific(declared, (name,))
    return None if glob is None else declared[glob]


def most_specific(
    globs: Iterable[str], names: Sequence[str], match: Callable[[str, str], bool] = fnmatchcase
) -> str | None:
    """The glob that has most letters besides wildcards, of those that match one of the names.

    Of several that say as much it is the last; `None` if no glob matches.
    """
    found = [glob for glob in globs if any(match(name, glob) for name in names)]
    return max(reversed(found), key=lambda glob: sum(x not in "*?[]" for x in glob), default=None)


def matches(name: str, pattern: str) -> bool:
    """True if `renamed` would replace the name."""
    return captured(pattern, name) is not None


def check_used(
    option: str,
    globs: Iterable[str],
    names: Iterable[str],
    what: str,
    match: Callable[[str, str], bool] = matches,
) -> None:
    """Refuse a glob that matches none of the names: it is mistyped, and would do nothing.

    Raises:
        InputError: with the name that is most like it.
    """
    known = list(dict.fromkeys(names))
    for glob in globs:
        if not any(match(name, glob) for name in known):
            near = get_close_matches(glob, known, 1, cutoff=0.0)
            hint = f"did you mean {near[0]!r}?" if near else "there is none"
            raise InputError(f"{option}: {glob!r} matches no {what}; {hint}")
