"""Facts that a report of a pair states."""

from collections.abc import Sequence
from typing import Any

import torch

from parity.core.pair import Case, Pair, PairOptions
from parity.host import memory


def facts(
    pair: Pair, reference: torch.nn.Module, cases: Sequence[Case], options: PairOptions, seed: int
) -> dict[str, Any]:
    """Inputs, size of the reference, and what the pair states of itself."""
    sources = "; ".join(dict.fromkeys(case.source for case in cases if case.source))
    given = ", ".join(f"{key} {value}" for key, value in options.items() if value is not None)
    return {
        "input": sources or f"made by the pair{given and f' ({given})'}",
        **pair.facts(options, seed),
        "parameters": sum(p.numel() for p in reference.parameters()),
        "weights_gib": memory.gib(sum(p.nbytes for p in reference.parameters())),
    }
