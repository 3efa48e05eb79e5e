"""A drawn net and its port, compared, and what is false about the verdict."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from parity.weights.module_map import around
from tests.drawn.grammar import Net, Node, draw
from tests.drawn.port import LEAVES, MISTAKES, Mistake, port, style
from tests.drawn.reference import reference
from tests.reports import compare

SEEN = 1e-3
"""Relative error of an output from which on a mistake is no matter of rounding."""


@dataclass(frozen=True)
class Drawn:
    """Both models with their arguments, and where the mistake is."""

    reference: torch.nn.Module
    port: Any
    args: tuple[Any, ...]
    mistake: str = ""
    places: tuple[str, ...] = ()
    """Paths of the reference that name the module with the mistake."""

    def verdict(self) -> Any:
        """The report of the comparison, without any configuration."""
        with jax.numpy_rank_promotion("allow"):
            return compare(self.reference, self.port, self.args)


def right(seed: int) -> Drawn:
    """A net with a right port."""
    net = draw(seed)
    theirs, made, args = reference(net, seed)
    return Drawn(theirs, port(net, made, seed), args)


def wrong(seed: int) -> Drawn:
    """The same with the first mistake of all, in an order that is drawn, that shows."""
    net = draw(seed)
    theirs, made, args = reference(net, seed)
    nodes = [node for node in net.root.walk() if node.kind in MISTAKES]
    every = [Mistake(node, name) for node in nodes for name in MISTAKES[node.kind]]
    good = _outputs(port(net, made, seed), args, net, seed)
    for i in np.random.default_rng([seed, 3]).permutation(len(every)):
        one = every[i]
        try:
            ours = port(net, made, seed, one)
            shown = _outputs(ours, args, net, seed)
        except (TypeError, ValueError):  # shapes that do not fit: it never ran
            continue
        if any(_differ(x, y) for x, y in zip(good, shown, strict=True)):
            name = f"{one.node.kind}: {one.name}"
            return Drawn(
                theirs, ours, args, name, tuple(_places(one.node, net, theirs, made, seed))
            )
    raise AssertionError(f"no mistake shows in the net of seed {seed}")


def _outputs(ours: Any, args: Any, net: Net, seed: int) -> list[Any]:
    if net.root.image and not style(seed).first:
        args = tuple(np.moveaxis(x, 1, -1) for x in args)
    with jax.numpy_rank_promotion("allow"):
        returned = ours(*args)
    returned = returned.values() if isinstance(returned, dict) else returned
    return [*map(np.asarray, returned if not hasattr(returned, "shape") else [returned])]


def _differ(x: Any, y: Any) -> bool:
    return x.shape != y.shape or not np.linalg.norm(x - y) <= SEEN * np.linalg.norm(x)


def _places(node: Node, net: Net, theirs: Any, made: dict[int, Any], seed: int) -> Any:
    """The paths of a node, or where the port has it as a function those of the module around it."""
    named = [*theirs.named_modules(remove_duplicate=False)]
    for path, module in named:
        if module is made.get(id(node)):
            yield path
    function = node.kind in LEAVES and style(seed).leaves == "function"
    if function or id(node) not in made:
        for parent in net.root.walk():
            if node in parent.parts.values():
                yield from (path for path, module in named if module is made[id(parent)])
                yield from (f"{p}.qkv" for p, m in named if m is made[id(parent)])


@dataclass(frozen=True)
class Outcome:
    """How the comparison of a drawn net ended.

    `placed` is true if its faults are at the mistake, `inlined` if they are at the module around,
    with which the report says that the mistaken one counts.
    """

    seed: int
    verdict: str
    placed: bool
    inlined: bool
    text: str


def outcome(seed: int, mistake: bool) -> Outcome:
    """Compare one net."""
    drawn = wrong(seed) if mistake else right(seed)
    try:
        report = drawn.verdict()
    except Exception as error:  # of a right port as of a wrong one this is a false verdict
        return Outcome(
            seed, "raised", False, False, f"{drawn.mistake}: {type(error).__name__}: {error}"
        )
    found = [fault.path for fault in report.faults]
    coverage = report.coverage
    outer = {around(path, coverage.matched) for path in drawn.places if path in coverage.inlined}
    placed, inlined = (bool(found) and {*found} <= {*places} for places in (drawn.places, outer))
    text = f"{drawn.mistake} in {drawn.places}: {report.faults}" if mistake else str(report.notes)
    return Outcome(seed, report.verdict, placed, inlined and not placed, text)
