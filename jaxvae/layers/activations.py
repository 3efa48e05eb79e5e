"""Activations and dropout, each rounded once as PyTorch rounds it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.rounding import narrow, widen
from jaxvae.layers.scopes import Module


class SiLU(Module):
    """x * sigmoid(x). Source: torch 2.13, `nn.SiLU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        output: Array = _silu(input)
        return output


class Mish(Module):
    """x * tanh(softplus(x)). Source: torch 2.13, `nn.Mish`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        output: Array = _mish(input)
        return output


class GELU(Module):
    """x * Phi(x) with the exact erf, not the tanh formula. Source: torch 2.13, `nn.GELU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        output: Array = _gelu(input)
        return output


class ReLU(Module):
    """max(x, 0). Source: torch 2.13, `nn.ReLU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        return jax.nn.relu(input)  # its gradient at 0 is 0, as torch's; that of jnp.maximum is 0.5


@jax.jit
def _silu(x: Array) -> Array:
    wide = widen(x)
    return narrow(wide * jax.nn.sigmoid(wide), x.dtype)


@jax.jit
def _mish(x: Array) -> Array:
    # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2): the gradient of tanh itself is a difference
    # of nearly equal numbers where it is near 1. Above the bound it is 1 in all digits.
    wide = widen(x)
    power = jnp.exp(jnp.minimum(wide, 20 if wide.dtype == jnp.float64 else 10))
    doubled = power * (power + 2)
    return narrow(wide * (doubled / (doubled + 2)), x.dtype)


@jax.jit
def _gelu(x: Array) -> Array:
    return narrow(jax.nn.gelu(widen(x), approximate=False), x.dtype)


class Dropout(Module):
    """Zero elements with probability `p` and multiply the rest by 1 / (1 - p).

    Source: torch 2.13, `nn.Dropout`. The factor is not rounded to bfloat16 (as on a GPU; PyTorch's
    CPU code rounds it). Does nothing after `.eval()`. The random stream is forked from
    the constructor's `rngs`, and only where `p` is above zero.
    """

    def __init__(self, p: float = 0.5, *, rngs: nnx.Rngs):
        """Take PyTorch's probability."""
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: expected a probability in [0, 1), found {p}")
        self.p = p
        self.deterministic = False
        self.rngs = nnx.data(rngs.dropout.fork() if p > 0 else None)

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Drop elements, or return the input as it is."""
        if self.rngs is None or self.deterministic:
            return input
        keep = jax.random.bernoulli(self.rngs(), 1 - self.p, input.shape)
        kept = narrow(widen(input) * (1 / (1 - self.p)), input.dtype)
        return jnp.where(keep, kept, jnp.zeros_like(input))


_ACTIVATIONS: dict[str, type[nnx.Module]] = {
    "silu": SiLU,
    "swish": SiLU,
    "mish": Mish,
    "gelu": GELU,
    "relu": ReLU,
}


def get_activation(act_fn: str) -> Any:
    """Return a new activation module for one of diffusers' names, in any case."""
    try:
        return _ACTIVATIONS[act_fn.lower()]()
    except KeyError:
        names = ", ".join(_ACTIVATIONS)
        raise ValueError(f"act_fn: expected one of {names}, found {act_fn!r}") from None
