"""Globs over dotted names, as `fnmatch` has them: what they match, and what they make of a name."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from functools import cache
from typing import Any, NamedTuple

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
    pattern = most_specific(rename, (name,))
    if pattern is None:
        return name
    target = rename[pattern]
    for part in captured(pattern, name) or ():
        target = target.replace("*", part, 1)
    return target


def captured(pattern: str, name: str) -> tuple[str, ...] | None:
    """The text that each `*` of the pattern holds; `None` if it does not match.

    The first holds as much as it can, then the next. One regular expression would say the same, but
    some take years, and a pattern may be a file's.
    """
    first, *parts = _between_stars(pattern)
    if not parts:
        return () if first.fits(name, 0) and first.length == len(name) else None
    last = parts.pop()
    start, stop = first.length, len(name) - last.length
    if start > stop or not (first.fits(name, 0) and last.fits(name, stop)):
        return None
    held = []
    for part in reversed(parts):
        places = range(stop - part.length, start - 1, -1)
        at = next((at for at in places if part.fits(name, at)), None)
        if at is None:
            return None
        held.append(name[at + part.length : stop])
        stop = at
    return (name[start:stop], *reversed(held))


class _Part(NamedTuple):
    """A piece of a glob that has no `*`, and how many letters it matches."""

    pattern: re.Pattern[str]
    length: int

    def fits(self, name: str, at: int) -> bool:
        """True if it matches the letters from there on."""
        return self.pattern.fullmatch(name, at, at + self.length) is not None


@cache
def _between_stars(glob: str) -> tuple[_Part, ...]:
    letters: list[list[str]] = [[]]
    for letter in _pieces(glob):
        if letter == "*":
            letters.append([])
        else:
            letters[-1].append(letter)
    return tuple(_Part(re.compile(translate("".join(part))), len(part)) for part in letters)


def _pieces(glob: str) -> list[str]:
    """Letters, wildcards and sets of letters, each of which but `*` is one letter of a name."""
    return re.findall(r"(?s)\[(?:!.|[^!])[^]]*\]|.", glob)


def _is_letter(piece: str) -> bool:
    return len(piece) == 1 and piece not in "*?"


def why(name: str, declared: Mapping[str, str]) -> str | None:
    """The reason given for the most specific glob that matches `name`, if one does."""
    glob = most_specific(declared, (name,))
    return None if glob is None else declared[glob]


def most_specific(globs: Iterable[str], names: Sequence[str]) -> str | None:
    """The glob that has most letters that stand for themselves, of those that match a name.

    Of several that say as much it is the last; `None` if no glob matches.
    """
    found = [glob for glob in globs if any(fnmatchcase(name, glob) for name in names)]
    return max(reversed(found), key=lambda glob: sum(map(_is_letter, _pieces(glob))), default=None)


def check_used(
    option: str,
    globs: Iterable[str],
    names: Iterable[str],
    what: str,
    match: Callable[[str, str], bool] = fnmatchcase,
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
