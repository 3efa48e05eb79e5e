"""Modules that are looked into, where `only` and `depth` leave some out.

The others run as they are: nobody hears of their calls, and nothing is said of them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from parity.core.calls import Trace
from parity.core.globs import renamed
from parity.core.pair import Case
from parity.core.verdicts import Coverage
from parity.options.options import Options

DEEPER = "deeper than was asked for: counted with the module around it"


@dataclass(frozen=True)
class Scope:
    """Paths of the submodules to record on each side, `None` for all of them.

    `whole` says that the called module is judged too. `deeper` are the reference's modules that
    count with one around them.
    """

    ref: Collection[str] | None = None
    port: Collection[str] | None = None
    whole: bool = True
    deeper: tuple[str, ...] = ()


def scope_of(case: Case, ref: Collection[str], port: Iterable[str], options: Options) -> Scope:
    """Scope of a case; `ref` and `port` are all paths of the two sides.

    `options.only` are globs of the reference's paths: what they match, and what is inside that.
    `options.depth` is how many names more than such a path, or than the called module's, the path
    of a recorded module may have.
    """
    only, depth, rename = options.only, options.depth, options.rename or {}
    tops = outermost(only, ref) if only else (case.path,)
    whole = _inside(case.path, tops)
    if case.depth == 0:
        return Scope((), (), whole)
    if not only and depth is None:
        return Scope()
    inner = [path for path in _below(case.path, ref) if _inside(path, tops)]
    near = [path for path in inner if depth is None or _levels(path, tops) <= depth]
    port_paths = {renamed(path, rename) for path in near}
    if depth is None:
        ends = [renamed(top, rename) for top in tops]
        port_paths |= {path for path in port if _inside(path, ends)}
    deeper = tuple(path for path in inner if path not in near)
    return Scope(frozenset(near), frozenset(port_paths), whole, deeper)


def _below(called: str, paths: Collection[str]) -> list[str]:
    return [path for path in paths if path != called and _inside(path, (called,))]


def outermost(only: Sequence[str], paths: Collection[str]) -> tuple[str, ...]:
    """The paths that a glob matches, without those inside another of them."""
    found = [path for path in paths if any(fnmatchcase(path, glob) for glob in only)]
    return tuple(
        path for path in found if not _inside(path, [other for other in found if other != path])
    )


def touches(only: Sequence[str], paths: Collection[str], called: str, alone: bool) -> bool:
    """True if a call of the module at `called`, `alone` or with those inside, shows a choice."""
    tops = outermost(only, paths)
    return _inside(called, tops) or (not alone and any(_inside(top, (called,)) for top in tops))


def needed(only: Sequence[str], paths: Collection[str], cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases that can show a choice, and those whose outputs others may be made from."""
    if not only:
        return tuple(cases)
    wanted = [touches(only, paths, case.path, case.depth == 0) for case in cases]
    later = (i for i, case in enumerate(cases) if case.args_from or case.returned_from)
    last = max((i for i in later if wanted[i]), default=0)
    return tuple(case for i, case in enumerate(cases) if wanted[i] or i < last)


def opened(trace: Trace) -> Trace:
    """The calls inside the called module's, without that one."""
    if not trace.calls:
        return trace
    *inner, root = trace.calls
    return replace(
        trace,
        calls=tuple(replace(c, parent=-1) if c.parent == root.order else c for c in inner),
        modules={path: info for path, info in trace.modules.items() if path != root.path},
    )


def with_deeper(coverage: Coverage, deeper: Sequence[str]) -> Coverage:
    """The coverage with the modules that were not recorded for their depth alone."""
    reasons = dict.fromkeys(deeper, DEEPER)
    return replace(
        coverage,
        modules=coverage.modules + len(deeper),
        inlined={**coverage.inlined, **reasons},
    )


def partial_note(only: Sequence[str], depth: int | None, judged: int, modules: int) -> str:
    """Note on a report of a part; `""` if it is on everything."""
    globs = ", ".join(map(repr, only))
    if only and judged < modules:
        return (
            f"a part only: {judged} of {modules} modules were chosen ({globs}); of the others this "
            "report says nothing"
        )
    if depth is not None:
        return (
            f"a part only: modules more than {depth} levels down count with the one around them, "
            "where a small mistake may not show"
        )
    return ""


def _inside(path: str, tops: Iterable[str]) -> bool:
    """True if a path is one of these, or below one."""
    return any(not top or path == top or path.startswith(f"{top}.") for top in tops)


def _levels(path: str, tops: Iterable[str]) -> int:
    """Number of names that the path has more than the one of these that it is below."""
    top = next(top for top in tops if _inside(path, (top,)))
    return len(_names(path)) - len(_names(top))


def _names(path: str) -> list[str]:
    return path.split(".") if path else []
