"""Mistakes planted in the right ports, and the modules of the reference in which each sits."""

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import util
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from tests.ports.both import made, port_outputs
from tests.ports.edits import EDITS

Made = tuple[Any, Any, tuple[Any, ...]]
"""(reference, port, arguments)."""

Change = Callable[[Any, Any], None]
"""Makes a layer wrong, or a tensor of it."""


@dataclass(frozen=True)
class Mistake:
    """A kind of mistake, what it is, and how to make a port that has it.

    `paths` are the modules of the reference that compute what is wrong, in order of execution.
    """

    kind: str
    what: str
    paths: tuple[str, ...]
    make: Callable[[], Made]


def mistakes(name: str) -> list[Mistake]:
    """All that can be planted in one of the ports."""
    return [*_edits(name), *_in_layers(name)]


def drawn(name: str, seed: int, count: int = 3) -> list[Mistake]:
    """Some of them, each of another kind, that change what the port returns."""
    random, found = np.random.default_rng([seed, *name.encode()]), mistakes(name)
    kinds = sorted({one.kind for one in found})
    chosen: list[Mistake] = []
    for kind in random.permutation(kinds):
        own = [one for one in found if one.kind == kind]
        order = (own[at] for at in random.permutation(len(own)))
        first = next((one for one in order if changes(name, one)), None)
        if first is not None and len(chosen) < count:
            chosen.append(first)
    return chosen


def changes(name: str, mistake: Mistake, least: float = 1e-6) -> bool:
    """True if the wrong port returns something else, by more than rounding."""
    wrong, right = (port_outputs(name, *one[1:]) for one in (mistake.make(), made(name)))
    gaps = [np.abs(x - y).max() / np.abs(y).max() for x, y in zip(wrong, right, strict=True)]
    return max(gaps) > least


def misplaced(report: Any, mistake: Mistake) -> str:
    """What a report gets wrong of a mistake; empty if each fault is where it was planted.

    A module without counterpart counts with the nearest around it that has one.
    """
    wanted = [*dict.fromkeys(_matched(path, report.coverage) for path in mistake.paths)]
    found = [fault.path for fault in report.faults]
    if report.verdict != "FAIL" or not found:
        return f"{report.verdict} with {len(found)} faults"
    if found[0] != wanted[0]:
        return f"first fault {found[0]!r}, not {wanted[0]!r}"
    more = [path for path in {*found} if found.count(path) > 1 or path not in wanted]
    return f"further faults {found[1:]}" if more else ""


def _matched(path: str, coverage: Any) -> str:
    while path and path not in coverage.matched:
        path = path.rpartition(".")[0]
    return path


def _edits(name: str) -> Iterator[Mistake]:
    """A line of the port's source changed: wrong in all modules that run it, then in one alone."""
    right = made(name)
    known = _owners(right[0])
    for kind, old, new, paths in EDITS[name]:
        what = f"{old} -> {new}"
        yield Mistake(kind, what, paths, partial(_edited, name, old, new))
        owner = _class_around(name, old)
        places = [at for at, one in _nodes(right[1]) if type(one).__name__ == owner]
        of_path = {
            path: [at for at in places if _around(right[1], at, path, known)] for path in paths
        }
        if len(paths) > 1 and all(len(own) == 1 for own in of_path.values()):
            for path, (at,) in of_path.items():
                make = partial(_grafted, name, old, new, at)
                yield Mistake(kind, f"{what}, in {path} alone", (path,), make)


def _around(port: Any, at: str, path: str, known: Mapping[Any, str]) -> bool:
    """True if all that is known of the tensors at a place of the port is in or around a module."""
    held = [one for own, one in _nodes(port) if own.startswith(f"{at}.")]
    paths = [known[_key(one[...])] for one in held if _known(one, known)]
    shared = paths[0].split(".") if paths else []
    while shared and not all(f"{one}.".startswith(".".join(shared) + ".") for one in paths):
        shared.pop()
    one, other = (f"{x}." for x in (".".join(shared), path))
    return bool(paths) and (one.startswith(other) or other.startswith(one))


def _known(node: Any, known: Mapping[Any, str]) -> bool:
    return isinstance(node, nnx.Param) and _key(node[...]) in known


def _owners(reference: Any) -> dict[Any, str]:
    """Paths of the modules of the reference by the values of the tensors that they hold."""
    return {_key(p.detach()): full.rpartition(".")[0] for full, p in reference.named_parameters()}


def _in_layers(name: str) -> Iterator[Mistake]:
    """An attribute or a kernel of one layer changed; its place is told by the values it holds."""
    reference, port, _ = made(name)
    known = _owners(reference)
    layers = dict(_nodes(port))
    for at, variable in layers.items():
        if _known(variable, known):
            place = (known[_key(variable[...])],)
            around, _, own = at.rpartition(".")
            for kind, what, change in _changes(layers[around], own, variable.shape):
                yield Mistake(kind, f"{what} of {at}", place, partial(_changed, name, at, change))


def _changes(layer: Any, own: str, shape: tuple[int, ...]) -> Iterator[tuple[str, str, Change]]:
    """Changes of the layer that holds this tensor."""
    if own == "scale":
        for epsilon in (1e-5, 1e-3, 1e-2):
            if getattr(layer, "epsilon", 1.0) < epsilon:
                yield "epsilon", f"epsilon {epsilon}", _setting(epsilon=epsilon)
        if hasattr(layer, "reduction_axes"):
            yield "norm axes", "reduction axes -2", _setting(reduction_axes=-2)
        if hasattr(layer, "num_groups") and layer.num_groups > 1:
            groups = layer.num_groups // 2
            change = _setting(num_groups=groups, group_size=2 * layer.group_size)
            yield "norm axes", f"{groups} groups", change
    axes = [(i, j) for i, j in pairwise(range(len(shape))) if shape[i] == shape[j] > 1]
    for one in axes if own != "embedding" else ():
        yield "transposed kernel", f"axes {one} of {own}", _transposing(one)


def _setting(**values: Any) -> Change:
    def change(layer: Any, variable: Any) -> None:
        for name, value in values.items():
            setattr(layer, name, value)

    return change


def _transposing(axes: tuple[int, int]) -> Change:
    def change(layer: Any, variable: Any) -> None:
        variable[...] = variable[...].swapaxes(*axes)

    return change


def _changed(name: str, at: str, change: Change) -> Made:
    reference, port, args = made(name)
    nodes = dict(_nodes(port))
    change(nodes[at.rpartition(".")[0]], nodes[at])
    return reference, port, args


def _edited(name: str, old: str, new: str) -> Made:
    """The pair, its file read with one text changed."""
    file, text = _source(name)
    if text.count(old) != 1:
        raise ValueError(f"{name}: {old!r} is {text.count(old)} times in the source, not once")
    module = types.ModuleType(f"tests.ports.{name}_planted")
    module.__file__ = file
    sys.modules[module.__name__] = module
    exec(compile(text.replace(old, new), file, "exec"), module.__dict__)
    made_so: Made = module.make()
    return made_so


def _grafted(name: str, old: str, new: str, at: str) -> Made:
    """The right pair with one module of the port from the edited source."""
    reference, port, args = made(name)
    wrong = dict(_nodes(_edited(name, old, new)[1]))[at]
    around, _, last = at.rpartition(".")
    owner = dict(_nodes(port))[around]
    if isinstance(owner, nnx.List):
        owner[int(last)] = wrong
    else:
        setattr(owner, last, wrong)
    return reference, port, args


def _source(name: str) -> tuple[str, str]:
    spec = util.find_spec(f"tests.ports.{name}")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin, Path(spec.origin).read_text()


def _class_around(name: str, old: str) -> str:
    """The class whose source holds the text; empty for a function."""
    before = _source(name)[1].partition(old)[0].splitlines()
    tops = [line for line in before if line.startswith(("class ", "def "))]
    return tops[-1].removeprefix("class ").partition("(")[0]


def _nodes(port: Any) -> list[tuple[str, Any]]:
    """Modules, containers and variables of a port by path."""
    return [(".".join(map(str, path)), one) for path, one in nnx.iter_graph(port)]


def _key(values: Any) -> bytes:
    """The same for the same numbers in any order."""
    return np.sort(np.asarray(values), None).tobytes()
