"""The operations of a backward pass, and which arrays they lead to."""

from collections.abc import Sequence
from typing import Any

import torch

ACCUMULATES = "torch::autograd::AccumulateGrad"
"""The operation that a leaf of the graph has."""


def nodes(outputs: Sequence[torch.Tensor]) -> Sequence[Any]:
    """The operations behind some arrays, each once."""
    found: dict[Any, None] = {}
    rest: list[Any] = [one.grad_fn for one in outputs]
    while rest:
        node = rest.pop()
        if node is not None and node not in found:
            found[node] = None
            rest.extend(after for after, _ in node.next_functions)
    return list(found)


def leads_to(output: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[bool]:
    """Whether an array is computed from each of these, which are leaves of its graph."""
    found = (node for node in nodes([output]) if node.name() == ACCUMULATES)
    ends = {id(node.variable) for node in found}
    return [id(leaf) in ends for leaf in leaves]
