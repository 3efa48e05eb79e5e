"""Whose fault a call is that is right with the numbers, flags and masks of the reference.

Forcing replaces arrays that both sides have. A plain value keeps the port's, and so does an array
that one side alone hands on: of a call that fails they are put in by experiment.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.align.leaves import PLAIN, same_value
from parity.capture.nnx import target
from parity.core.arrays import comparable
from parity.core.calls import Leaf, Match, above
from parity.core.limits import fail_limit
from parity.core.measurements import ChildInput, Error
from parity.core.problems import Problem, ProblemKind
from parity.core.store import Store
from parity.core.tree import flatten, rebuild
from parity.force.common import Sides, by_port_leaf, reference, values
from parity.force.nnx import repeat
from parity.measure.exclusive import Exclusives
from parity.measure.free import Key
from parity.measure.noise import bounded, score

SLACK = 4
"""How far above its limit R of a call with all that is inside it may be, at worst, to be right."""

ABSENT = object()


def charged_to_callers(
    matches: Sequence[Match], exclusives: Exclusives, sides: Sides, store: Store
) -> tuple[Exclusives, Mapping[Key, Error]]:
    """The exclusive errors with those of callers in place of those of what they call wrongly, and
    the errors of these calls on the arguments of the reference.

    What a wrong call returns beside what the reference's does, as a cache, is no error of the call
    that hands it on.
    """
    failing = exclusives.failing(matches)
    parents = {match.ref.order: match.parent for match in matches}
    around = {outer for order in failing for outer in above(order, parents)}
    errors = dict(exclusives.errors)
    passed = {
        order: tuple(x for x in found if exclusives.handed_on.get((x.child, x.leaf)) not in around)
        for order, found in exclusives.child_inputs.items()
    }
    right: dict[Key, Error] = {}
    before: dict[int, str] = {}
    for match in matches:
        order, parent, path = match.ref.order, match.parent, match.ref.path
        handed = match.port.arguments is not None and not (match.ref.tapped or match.port.tapped)
        doubtful = any(one.error.problem or one.error.unsteady for one in passed.get(order, ()))
        if parent != -1 and handed and (order in failing or doubtful):
            found, texts = _on_the_references(match, sides, store)
            if found:
                right |= found
                passed.pop(order, None)
                passed[parent] = passed.get(parent, ()) + tuple(
                    ChildInput(parent, order, path, name, before.get(parent, ""), _other(text))
                    for name, text in texts.items()
                )
        before[parent] = path
    return replace(exclusives, errors=errors | right, child_inputs=passed), right


def _other(text: str) -> Error:
    return Error(float("nan"), float("nan"), 0, problem=Problem(ProblemKind.VALUE, text))


def _on_the_references(
    match: Match, sides: Sides, store: Store
) -> tuple[dict[Key, Error], Mapping[str, str]]:
    """The errors of a call on the reference's arguments, if it is right then, and what these are
    instead of; nothing if it is not, or if its arguments are the reference's.
    """
    module = sides.module(match)
    arguments, texts = _arguments(match, store, _parameters(target(module, "__call__")))
    if not texts:
        return {}, {}
    flat = flatten(arguments)
    leaves = tuple(Leaf(name, value=value) for name, value in flat.statics)
    call = replace(match.port, arguments=flat.skeleton, inputs=leaves)
    try:
        output = repeat(module, "__call__", call, [np.asarray(array) for _, array in flat.arrays])
    except Exception:  # a port that takes no such arguments: they are not what it lacks
        return {}, {}
    arrays = dict(flatten(output).arrays)
    found, limit = {}, SLACK * fail_limit(match.family)
    for leaf in filter(comparable, match.outputs):
        ref, array = reference(leaf, store), arrays.get(leaf.port.name if leaf.port else "")
        if array is None or np.shape(array) != ref.shape:
            return {}, {}
        error = score(ref, np.asarray(array))
        if error.nonfinite or not bounded(error.rel_l2, limit, ref.dtype):
            return {}, {}
        found[match.ref.order, leaf.ref.name] = replace(error, bounded=True)
    return found, texts


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _arguments(
    match: Match, store: Store, parameters: Mapping[str, Any]
) -> tuple[dict[Any, Any], dict[str, str]]:
    """The port's arguments with the reference's where these are others, and what was exchanged."""
    assert match.port.arguments is not None
    own: dict[Any, Any] = rebuild(match.port.arguments, values(match, store))
    if match.ref.arguments is None:
        return own, {}
    matched = {leaf.ref.name: leaf for leaf in match.inputs if comparable(leaf)}
    arrays = [
        reference(matched[leaf.name], store) if leaf.name in matched else store.get(leaf.buffer)
        for leaf in match.ref.inputs
        if leaf.buffer
    ]
    theirs: dict[Any, Any] = rebuild(match.ref.arguments, arrays)
    paired = {name.split(".")[0] for name in matched}
    ports = {name.split(".")[0] for name in by_port_leaf(match.inputs)}
    left = {name: value for name, value in theirs.items() if name not in paired}
    texts: dict[str, str] = {}
    for name, value in _pairs(left, [n for n in (*parameters, *own) if n not in ports], own):
        now = own.get(name, ABSENT)
        if _alike(value, now):
            continue
        if value is ABSENT:
            if getattr(parameters.get(name), "default", None) is inspect.Parameter.empty:
                continue
            del own[name]
        else:
            own[name] = value
        texts[str(name)] = f"{_text(now)} for `{name}` instead of {_text(value)}"
    return own, texts


def _pairs(
    left: Mapping[str, Any], names: Sequence[str], own: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The port's arguments with what the reference has: by name, then by place."""
    names = list(dict.fromkeys(map(str, names)))
    others = iter([value for name, value in left.items() if name not in names])
    for name in names:
        if name in left:
            yield name, left[name]
        else:
            value = next(others, ABSENT)
            if value is not ABSENT or name in own:
                yield name, value


def _alike(value: Any, now: Any) -> bool:
    """True if nothing is to be exchanged: the same plain value, or what cannot be told."""
    none = (ABSENT, None)
    if any(one is value for one in none):
        return any(one is now for one in none)
    if isinstance(value, PLAIN) and isinstance(now, PLAIN):
        return same_value(value, now)
    return not isinstance(value, (*PLAIN, np.ndarray))


def _text(value: Any) -> str:
    if value is ABSENT:
        return "nothing"
    return repr(value) if isinstance(value, PLAIN) else "an array"
