"""Measures what the limits on R rest on: a table of docs/thresholds.md.

    python -m tools.measure_r correct

R of correct modules and of their gradients, on ordinary and on nearly constant inputs; of sums; and
of the fault zoo: of every call of the healthy twins, and of the module at fault.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import click
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from flax import nnx

import parity
from parity.core.limits import TABLE, r_limit
from parity.core.metrics import rms
from parity.measure.noise import LONG
from tests.faultzoo import zoo
from tests.nets import randomise
from tools.tables import publish

Row = tuple[str, ...]

CHANNELS, GROUPS = 16, 4
VIDEO, IMAGE, TOKENS = (1, CHANNELS, 5, 9, 11), (2, CHANNELS, 13, 17), (2, 40, CHANNELS)


@dataclass(frozen=True)
class Leaf:
    """A correct module: the reference, what the port computes of a channel-last array, input."""

    torch: Callable[[], torch.nn.Module]
    port: Callable[[torch.nn.Module, jax.Array], jax.Array]
    shape: tuple[int, ...]
    ratio: float = 0.0
    """mean / std of the input."""


class Function(nnx.Module):
    """A port that is one function of its input and the reference's tensors."""

    def __init__(self, function: Callable[[jax.Array], jax.Array]) -> None:
        self.function = function

    def __call__(self, x: jax.Array) -> jax.Array:  # noqa: D102
        return self.function(x)


class Attention(torch.nn.Module):
    """Attention over (batch, position, 3 * channel)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return F.scaled_dot_product_attention(*x.chunk(3, -1))


def attention(_: torch.nn.Module, x: jax.Array) -> jax.Array:
    """The same with the softmax written out."""
    q, k, v = jnp.split(x, 3, -1)
    scores = jnp.einsum("bqc,bkc->bqk", q, k, precision="highest") / q.shape[-1] ** 0.5
    return jnp.einsum("bqk,bkc->bqc", jax.nn.softmax(scores), v, precision="highest")


def convolution(module: Any, x: jax.Array) -> jax.Array:
    """One call of XLA's convolution."""
    return zoo.conv(module)(x)


def dense(module: Any, x: jax.Array) -> jax.Array:
    """A matrix product."""
    product = jnp.matmul(x, zoo.kernel(module.weight), precision="highest")
    return product + by_channel(module.bias, x)


def by_channel(vector: torch.Tensor, x: jax.Array) -> jax.Array:
    """A value for each channel of a channel-last array."""
    return zoo.array(vector).reshape((1,) * (x.ndim - 1) + (-1,))


def over(axes: str) -> Callable[[Any, jax.Array], jax.Array]:
    """A norm with its variance in two passes."""

    def normalise(module: Any, x: jax.Array) -> jax.Array:
        y = x.reshape(x.shape[0], -1, GROUPS, x.shape[-1] // GROUPS) if axes == "group" else x
        along = {"group": (1, 3), "layer": (-1,), "instance": tuple(range(1, x.ndim - 1))}[axes]
        mean = y.mean(along, keepdims=True)
        variance = jnp.square(y - mean).mean(along, keepdims=True)
        y = ((y - mean) * jax.lax.rsqrt(variance + module.eps)).reshape(x.shape)
        return y * by_channel(module.weight, x) + by_channel(module.bias, x)

    return normalise


def statistics(module: Any, x: jax.Array) -> jax.Array:
    """A batch norm in evaluation."""
    mean, variance = by_channel(module.running_mean, x), by_channel(module.running_var, x)
    y = (x - mean) * jax.lax.rsqrt(variance + module.eps)
    return y * by_channel(module.weight, x) + by_channel(module.bias, x)


def alone(function: Callable[[jax.Array], jax.Array]) -> Callable[[Any, jax.Array], jax.Array]:
    """A function without parameters."""
    return lambda _, x: function(x)


NORMS = {
    "GroupNorm": Leaf(lambda: torch.nn.GroupNorm(GROUPS, CHANNELS), over("group"), IMAGE),
    "LayerNorm": Leaf(lambda: torch.nn.LayerNorm(CHANNELS), over("layer"), TOKENS),
    "InstanceNorm2d": Leaf(
        lambda: torch.nn.InstanceNorm2d(CHANNELS, affine=True), over("instance"), IMAGE
    ),
}
CORRECT = {
    "Conv1d": Leaf(lambda: torch.nn.Conv1d(CHANNELS, 24, 3, padding=1), convolution, (2, 16, 40)),
    "Conv2d": Leaf(lambda: torch.nn.Conv2d(CHANNELS, 24, 3, padding=1), convolution, IMAGE),
    "Conv3d": Leaf(lambda: torch.nn.Conv3d(CHANNELS, 24, 3, padding=1), convolution, VIDEO),
    "Linear": Leaf(lambda: torch.nn.Linear(CHANNELS, 24), dense, TOKENS),
    "Attention": Leaf(Attention, attention, (2, 40, 3 * CHANNELS)),
    "Softmax": Leaf(lambda: torch.nn.Softmax(-1), alone(jax.nn.softmax), TOKENS),
    "SiLU": Leaf(torch.nn.SiLU, alone(jax.nn.silu), TOKENS),
    "GELU": Leaf(torch.nn.GELU, alone(lambda x: jax.nn.gelu(x, approximate=False)), TOKENS),
    "Mish": Leaf(torch.nn.Mish, alone(jax.nn.mish), TOKENS),
    "Tanh": Leaf(torch.nn.Tanh, alone(jnp.tanh), TOKENS),
    "Sigmoid": Leaf(torch.nn.Sigmoid, alone(jax.nn.sigmoid), TOKENS),
    "BatchNorm2d": Leaf(lambda: torch.nn.BatchNorm2d(CHANNELS), statistics, IMAGE),
    **{
        name if not ratio else f"{name}, mean/std {ratio:g}": replace(leaf, ratio=ratio)
        for name, leaf in NORMS.items()
        for ratio in (0.0, 30.0, 1000.0, 10000.0)
    },
}


def of_leaf(leaf: Leaf, seed: int, gradients: bool = False) -> float:
    """R of a correct module with random tensors, of its outputs or its gradients."""
    table = table_of(leaf, seed, gradients)
    return float(table[table.leaf.str.startswith("grad(") == gradients].R.max())


def table_of(leaf: Leaf, seed: int, gradients: bool = False) -> pd.DataFrame:
    """All that a comparison says of it."""
    torch.manual_seed(seed)
    reference = randomise(leaf.torch())
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(leaf.shape) + leaf.ratio).astype(np.float32)
    port = Function(lambda array: leaf.port(reference, array))
    return parity.compare(reference, port, (x,), gradients=gradients).table


def of_sum(count: int, seed: int) -> tuple[float, float]:
    """How many times four roundings the gradient of a convolution's weights is off, which is a sum
    over as many positions: PyTorch's, and what XLA makes of it.
    """
    side = math.isqrt(count)
    rng = np.random.default_rng(seed)
    x, given = (rng.standard_normal((1, 8, side, side)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal((8, 8, 3, 3)).astype(np.float32)

    def theirs(dtype: torch.dtype) -> np.ndarray:
        tensors = [torch.from_numpy(one).to(dtype) for one in (weight, x, given)]
        own = tensors[0].requires_grad_(True)
        (found,) = torch.autograd.grad(F.conv2d(tensors[1], own, padding=1), own, tensors[2])
        return found.numpy()

    def ours(kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", precision="highest")

    (port,) = jax.vjp(ours, jnp.asarray(weight))[1](jnp.asarray(given))
    wide = theirs(torch.float64)
    unit = 4 * 2.0**-24 * rms(wide)
    return rms(theirs(torch.float32) - wide) / unit, rms(np.asarray(port) - wide) / unit


def of_case(case: zoo.Case, wrong: bool, seed: int) -> Iterator[tuple[str, str, float]]:
    """Path, kind and R of every call of a case of the fault zoo."""
    reference, port, x = zoo.nets(case, wrong, seed)
    layout = {"*": "channels_first"} if x.ndim == 3 else None
    # only rows are wanted, and the search for a cause takes most of the time
    with mock.patch("parity.run.case.faults_of", return_value=()):
        rows = parity.compare(reference, port, (x,), layout=layout).rows
    for row in rows:
        if row.exclusive is not None:
            yield row.path, row.kind, row.exclusive.r


def limits(_: int) -> Iterator[Row]:
    """The limits of each family of classes."""
    for line in TABLE:
        yield tuple(line.as_markdown()[2:-2].split(" | "))


def correct(seeds: int, gradients: bool = False) -> Iterator[Row]:
    """R of each correct module."""
    for name, leaf in CORRECT.items():
        found = [of_leaf(leaf, seed, gradients) for seed in range(seeds)]
        family = r_limit(name.partition(",")[0]).family
        yield name, family, f"{np.median(found):.2f}", f"{max(found):.2f}"


def sums(seeds: int) -> Iterator[Row]:
    """How far off sums over many positions are."""
    for count in (64, 1024, 16384, 262144):
        pairs = [of_sum(count, seed) for seed in range(seeds)]
        worst = (f"{max(one):.2f}" for one in zip(*pairs, strict=True))
        yield str(count), f"{count**0.5 / LONG:.1f}", *worst


def of_zoo(seeds: int) -> Iterator[Row]:
    """R of each case of the fault zoo."""
    for case in zoo.CASES:
        healthy: dict[str, list[float]] = {line.family: [] for line in TABLE}
        faults, family = [], ""
        for seed in range(seeds):
            for _, kind, r in of_case(case, False, seed):
                healthy[r_limit(kind).family].append(r)
            found = [(kind, r) for path, kind, r in of_case(case, True, seed) if path == case.path]
            family = r_limit(found[0][0]).family
            faults.append(max(r for _, r in found))
        worst = [f"{max(rs):.2f}" if rs else "" for rs in healthy.values()]
        yield case.name, *worst, f"{min(faults):.3g}", family


OF_MODULES = ("module", "family", "median R", "largest R")
TABLES: dict[str, tuple[Row, Callable[[int], Iterator[Row]]]] = {
    "limits": (("family", "classes", "WARN above", "FAIL above", "because"), limits),
    "correct": (OF_MODULES, correct),
    "gradients": (OF_MODULES, lambda seeds: correct(seeds, gradients=True)),
    "sums": (("positions", f"sqrt(n) / {LONG:g}", "PyTorch", "XLA"), sums),
    "zoo": (("case", "healthy norms", "healthy others", "at fault", "its family"), of_zoo),
}
HEADS = tuple(head for head, _ in TABLES.values())


@click.command()
@click.argument("name", type=click.Choice(tuple(TABLES)))
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True)
def main(name: str, seeds: int) -> None:
    """Measure one of the tables."""
    head, rows = TABLES[name]
    publish(head, rows(seeds), f"{seeds} seeds." if name != "limits" else "")


if __name__ == "__main__":
    main()
