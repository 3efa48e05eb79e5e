"""Modules of PyTorch that hold others, or move values only: their paths and calls are its own."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxvae.layers.scopes import Module


class Sequential(Module):
    """Modules one after the other, named by their numbers. Source: torch 2.13, `nn.Sequential`."""

    def __init__(self, *layers: nnx.Module):
        self.count = len(layers)
        for i, layer in enumerate(layers):
            setattr(self, str(i), layer)

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Call each with what the one before returned."""
        for i in range(self.count):
            input = getattr(self, str(i))(input)
        return input


class Identity(Module):
    """The input as it is. Source: torch 2.13, `nn.Identity`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return it."""
        return input


class ZeroPad2d(Module):
    """Zeros around frames. Source: torch 2.13, `nn.ZeroPad2d`."""

    def __init__(self, padding: tuple[int, int, int, int]):
        """Take PyTorch's order: left, right, top, bottom."""
        self.padding = padding

    def __call__(self, input: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
        """Return the larger frames."""
        left, right, top, bottom = self.padding
        return jnp.pad(input, ((0, 0), (top, bottom), (left, right), (0, 0)))
