"""A block of attention in PyTorch and in Flax NNX, with one mistake in the port.

README.md beside this file goes from here to the line with the mistake.
"""

import math

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

WIDTH, HEADS, CLASSES = 16, 4, 5


class TorchAttention(torch.nn.Module):
    """Self-attention over (batch, tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = torch.nn.Linear(WIDTH, WIDTH)
        self.to_k = torch.nn.Linear(WIDTH, WIDTH)
        self.to_v = torch.nn.Linear(WIDTH, WIDTH)
        self.to_out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the tokens."""
        batch, tokens, _ = x.shape
        q, k, v = (
            project(x).view(batch, tokens, HEADS, -1).transpose(1, 2)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        mixed = scores.softmax(-1) @ v
        return self.to_out(mixed.transpose(1, 2).reshape(x.shape))


class TorchBlock(torch.nn.Module):
    """Norm and attention, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.attention = TorchAttention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the attention finds."""
        return x + self.attention(self.norm(x))


class TorchClassifier(torch.nn.Module):
    """Two blocks, the mean over tokens, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([TorchBlock(), TorchBlock()])
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of each item of the batch."""
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Attention(nnx.Module):
    """The port of `TorchAttention`: heads stay behind the tokens."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.to_q = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.to_k = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.to_v = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.to_out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        """Mix the tokens."""
        q, k, v = (
            project(x).reshape(*x.shape[:2], HEADS, -1)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        scores = jnp.einsum("bqhd,bkhd->bqkh", q, k) / math.sqrt(q.shape[-1])
        mixed = jnp.einsum("bqkh,bkhd->bqhd", self.weights(scores), v)
        return self.to_out(mixed.reshape(x.shape))

    def weights(self, scores: jnp.ndarray) -> jnp.ndarray:
        """The mistake: the last axis is that of the heads here, not that of the keys."""
        return nnx.softmax(scores)


class CorrectedAttention(Attention):
    """Without it."""

    def weights(self, scores: jnp.ndarray) -> jnp.ndarray:
        """How much of each key a query takes."""
        return nnx.softmax(scores, axis=2)


class Block(nnx.Module):
    """The port of `TorchBlock`; PyTorch's epsilon is not Flax's."""

    def __init__(self, attention: type[Attention], rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.attention = attention(rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        """Add what the attention finds."""
        return x + self.attention(self.norm(x))


class Classifier(nnx.Module):
    """The port of `TorchClassifier`."""

    def __init__(self, attention: type[Attention], rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Block(attention, rngs), Block(attention, rngs)])
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        """Logits of each item of the batch."""
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def convert(reference: torch.nn.Module, port: nnx.Module) -> None:
    """Give the port the reference's weights, module by module."""
    for path, module in reference.named_modules():
        if not isinstance(module, (torch.nn.Linear, torch.nn.LayerNorm)):
            continue
        ours = port
        for name in path.split("."):
            ours = ours[int(name)] if name.isdigit() else getattr(ours, name)
        weight, bias = (x.detach().numpy() for x in (module.weight, module.bias))
        if isinstance(module, torch.nn.Linear):
            ours.kernel[...] = jnp.asarray(weight.T)  # (in, out)
        else:
            ours.scale[...] = jnp.asarray(weight)
        ours.bias[...] = jnp.asarray(bias)


def make_pair(
    attention: type[Attention] = Attention,
) -> tuple[torch.nn.Module, nnx.Module, tuple[np.ndarray, ...]]:
    """Arguments of `parity compare`: the reference, the port, and the arguments of both."""
    torch.manual_seed(0)
    reference = TorchClassifier().eval()
    with torch.no_grad():  # norms as they start would hide a scale and a bias that are swapped
        for block in reference.blocks:
            block.norm.weight.normal_(1.0, 0.3)
            block.norm.bias.normal_(0.0, 0.2)
    port = Classifier(attention, nnx.Rngs(0))
    convert(reference, port)
    tokens = np.random.default_rng(0).standard_normal((3, 7, WIDTH)).astype(np.float32)
    return reference, port, (tokens,)


def make_corrected_pair() -> tuple[torch.nn.Module, nnx.Module, tuple[np.ndarray, ...]]:
    """The same with the corrected port."""
    return make_pair(CorrectedAttention)
