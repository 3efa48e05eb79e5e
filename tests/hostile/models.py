"""Tiny modules that the cases are made of."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flax import nnx

from tests.hostile.case import Compared
from tests.nets import ported, torch_of
from tests.ports import nnx_of

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def linear(features: int = 4) -> tuple[torch.nn.Linear, nnx.Linear]:
    """A layer and its port."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(features, features)
    return layer, ported(layer)


def compared(theirs: Any, ours: Any, *args: Any, **options: Any) -> Compared:
    """A comparison on these arguments, `X` if there are none."""
    return Compared(theirs, ours, {"torch_args": args or (X,), "check_compiled": False, **options})


def around(
    theirs: Callable[..., Any], ours: Callable[..., Any] | None = None, *args: Any, **options: Any
) -> Compared:
    """A layer `a` inside of modules that are functions of themselves and their arguments."""
    first, second = linear()
    reference, port = torch_of(theirs, a=first), nnx_of(ours or theirs, a=second)
    return compared(reference, port, *args, **options)


def linear_pair() -> Compared:
    """One layer inside of a root, a correct port."""
    return around(lambda self, x: self.a(x))
