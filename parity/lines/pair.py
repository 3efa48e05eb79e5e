"""A PyTorch module and a JAX function, aligned as wholes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity.core.tree import flatten
from parity.lines.frontier import Pair, Parting, parting
from parity.lines.jax_operations import evaluate
from parity.lines.operations import Program, Result
from parity.lines.torch_operations import run as run_torch
from parity.lines.values import Values

FACTOR = 10.0


@dataclass(frozen=True)
class Aligned:
    """Both programs, and the pairs of their outputs, of which some are `wrong`."""

    ref: Program
    port: Program
    values: Values
    pairs: tuple[Pair, ...]
    wrong: tuple[Pair, ...]


def run_jax(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Program, list[int | None]]:
    """The program of `function(*args)`, an NNX module's state taken for its weights."""
    args = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, args)
    if isinstance(function, nnx.Module):
        graph, state = nnx.split(function)
        call: Callable[..., Any] = lambda state, *args: nnx.merge(graph, state)(*args)  # noqa: E731
    else:
        state, call = None, lambda _, *args: function(*args)  # type: ignore[misc]
    leaves, tree = jax.tree.flatten((state, args))
    weights = len(jax.tree.leaves(state))

    def traced(*leaves: Any) -> Any:
        state, args = jax.tree.unflatten(tree, leaves)
        return [value for _, value in flatten(call(state, *args)).arrays]

    program = Program()
    closed = jax.make_jaxpr(traced)(*leaves)
    outputs = evaluate(closed, leaves, [at < weights for at in range(len(leaves))], program)
    return program, outputs


def align(
    module: torch.nn.Module, function: Callable[..., Any], args: tuple[Any, ...], port_args: tuple[Any, ...]
) -> Aligned:
    """Both sides run, and their outputs compared."""
    ref, results = run_torch(module, module, args)
    port, outputs = run_jax(function, port_args)
    pairs = tuple(
        Pair(Result(number), Result(output))
        for (_, number), output in zip(results, outputs, strict=True)
        if output is not None
    )
    values = Values(ref, port, FACTOR)
    wrong = tuple(pair for pair in pairs if not _right(values, pair))
    return Aligned(ref, port, values, pairs, wrong)


def _right(values: Values, pair: Pair) -> bool:
    twin = values.pair(pair.ref.value, pair.port.value)
    return twin is not None and twin.plain


def parted(aligned: Aligned) -> Parting | None:
    """Where they part, `None` if they do not."""
    if not aligned.wrong:
        return None
    return parting(aligned.ref, aligned.port, aligned.values, aligned.wrong)
