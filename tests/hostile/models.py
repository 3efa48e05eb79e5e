"""Tiny modules that the cases are made of."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from tests.hostile.case import Compared

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def torch_of(function: Callable[..., Any], **parts: Any) -> torch.nn.Module:
    """A module with these attributes whose forward is `function`."""

    class Reference(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, torch.nn.Module):
                    self.add_module(name, part)
                else:
                    setattr(self, name, part)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

    return Reference().eval()


def nnx_of(function: Callable[..., Any], **parts: Any) -> nnx.Module:
    """The same of a port."""

    class Port(nnx.Module):
        def __init__(self) -> None:
            for name, part in parts.items():
                setattr(self, name, part)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

    return Port()


def linear(features: int = 4) -> tuple[torch.nn.Linear, nnx.Linear]:
    """A layer and its port."""
    torch.manual_seed(0)
    theirs = torch.nn.Linear(features, features)
    ours = nnx.Linear(features, features, rngs=nnx.Rngs(0))
    ours.kernel[...] = jnp.asarray(theirs.weight.detach().numpy().T)
    ours.bias[...] = jnp.asarray(theirs.bias.detach().numpy())
    return theirs, ours


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
