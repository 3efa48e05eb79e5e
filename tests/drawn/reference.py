"""The reference of a drawn net, in PyTorch."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.drawn.grammar import Net, Node
from tests.ports.loading import randomise

ACTIVATIONS = {
    "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "leaky_relu": nn.LeakyReLU,
}  # fmt: skip


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Scale(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Any) -> Any:
        return x * self.weight.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim == 4 else x * self.weight


class Conv1d(nn.Conv1d):
    """Along the positions of (item, position, channel)."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def _conv(cls: Any, node: Node) -> nn.Module:
    f, width = node.facts, node.width
    return cls(width, width, f["size"], padding=f["size"] // 2, groups=f["groups"], bias=f["bias"])


STOCK = {
    "linear": lambda node: nn.Linear(node.width, node.facts["out"], bias=node.facts["bias"]),
    "layer_norm": lambda node: nn.LayerNorm(node.width, node.facts["eps"]),
    "rms_norm": lambda node: RMSNorm(node.width, node.facts["eps"]),
    "act": lambda node: ACTIVATIONS[node.facts["name"]](),
    "scale": lambda node: Scale(node.width),
    "dropout": lambda node: nn.Dropout(0.3),
    "conv": lambda node: _conv(nn.Conv2d, node),
    "conv1d": lambda node: _conv(Conv1d, node),
    "batch_norm": lambda node: nn.BatchNorm2d(node.width, node.facts["eps"]),
    "group_norm": lambda node: nn.GroupNorm(node.facts["groups"], node.width, node.facts["eps"]),
}


class Composite(nn.Module):
    """A module that calls others by their roles."""

    def __init__(self, node: Node, made: dict[str, nn.Module]) -> None:
        super().__init__()
        self.facts, self.roles = node.facts, list(made)
        match node.facts.get("held"):
            case "list":
                self.layers = nn.ModuleList(made.values())
            case "dict":
                self.blocks = nn.ModuleDict(made)
            case _:
                for role, module in made.items():
                    setattr(self, role, module)

    def call(self, role: str, x: Any, mask: Any) -> Any:
        match self.facts.get("held"):
            case "list":
                part = self.layers[self.roles.index(role)]
            case "dict":
                part = self.blocks[role]
            case _:
                part = getattr(self, role)
        return part(x, mask) if isinstance(part, Composite) else part(x)


def _attention(self: Any, x: Any, mask: Any = None) -> Any:
    batch, length, width = x.shape
    if self.facts["packed"]:
        parts = self.call("qkv", x, mask).chunk(3, -1)
    else:
        parts = [self.call(role, x, mask) for role in ("q", "k", "v")]
    q, k, v = (p.view(batch, length, self.facts["heads"], -1).transpose(1, 2) for p in parts)
    seen = torch.ones(length, length, dtype=torch.bool)
    seen = seen.tril() if self.facts["causal"] else seen
    if mask is not None:
        seen = seen & mask[:, None, None, :]
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return self.call("out", mixed.transpose(1, 2).reshape(batch, length, width), mask)


def _gated(self: Any, x: Any, mask: Any = None) -> Any:
    gate = F.silu(self.call("gate", x, mask))
    return self.call("down", gate * self.call("up", x, mask), mask)


def _squeeze(self: Any, x: Any, mask: Any = None) -> Any:
    gate = self.call("up", F.relu(self.call("down", x.mean((2, 3)), mask)), mask)
    return x * torch.sigmoid(gate)[:, :, None, None]


def _chain(self: Any, x: Any, mask: Any = None) -> Any:
    for role in self.roles:
        x = self.call(role, x, mask)
    return x


def _branches(self: Any, x: Any, mask: Any = None) -> Any:
    made = [self.call(role, x, mask) for role in self.roles]
    match self.facts["join"]:
        case "sum":
            return sum(made)
        case "product":
            return made[0] * torch.sigmoid(made[1]) + sum(made[2:])
    axis, n = (1 if x.ndim == 4 else 2), len(made)
    return torch.cat([y.tensor_split(n, axis)[i] for i, y in enumerate(made)], axis)


def _twice(self: Any, x: Any, mask: Any = None) -> Any:
    between = {"tanh": torch.tanh, "sin": torch.sin}[self.facts["between"]]
    return self.call(self.roles[-1], between(self.call("first", x, mask)), mask)


def _net(self: Any, x: Any, mask: Any = None) -> Any:
    hidden = self.call("body", x, mask)
    logits = self.call("head", hidden.mean((2, 3) if x.ndim == 4 else 1), mask)
    return {
        "array": logits,
        "tuple": (hidden, logits),
        "dict": {"hidden": hidden, "logits": logits},
    }[self.facts["returns"]]


FORWARD = {
    "mlp": lambda self, x, mask=None: _chain(self, x, mask),
    "residual": lambda self, x, mask=None: x + self.call("inner", x, mask),
    "gated": _gated, "attention": _attention, "squeeze": _squeeze, "chain": _chain,
    "branches": _branches, "twice": _twice, "net": _net,
}  # fmt: skip


def reference(net: Net, seed: int) -> tuple[nn.Module, dict[int, nn.Module], tuple[Any, ...]]:
    """The module in evaluation, those of the nodes by `id`, and arguments."""
    made: dict[int, nn.Module] = {}

    def module(node: Node) -> nn.Module:
        if id(node) not in made:
            made[id(node)] = _made(node, module)
        return made[id(node)]

    rng = np.random.default_rng([seed, 1])
    x = rng.standard_normal(net.shape).astype(np.float32)
    mask = np.arange(net.shape[1]) < net.shape[1] - np.arange(net.shape[0])[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        root = randomise(module(net.root), seed)
    return root, made, (x, mask) if net.masked else (x,)


def _made(node: Node, module: Any) -> nn.Module:
    if node.kind in STOCK:
        return STOCK[node.kind](node)
    if node.facts.get("packed"):
        qkv = nn.Linear(node.width, 3 * node.width, bias=node.parts["q"].facts["bias"])
        parts = {"qkv": qkv, "out": module(node.parts["out"])}
    else:
        parts = {role: module(part) for role, part in node.parts.items()}
    if node.kind == "twice" and node.facts["names"] == 1:
        del parts["second"]
    return type(node.kind.title(), (Composite,), {"forward": FORWARD[node.kind]})(node, parts)
