"""A small reference with what makes it hard to keep, and ports of it."""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from parity.core.pair import Case, Pair, Rung

X = np.random.default_rng(1).standard_normal((2, 3, 5, 7)).astype(np.float32)


class TorchBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(2, 4)
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x, scale=1.0, cache=None):
        h = self.conv(self.act(self.norm(x))) * scale
        h += x
        return h, {"mean": h.mean((2, 3)), "none": cache}


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.block = TorchBlock()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        h, _ = self.block(self.stem(x))
        h, stats = self.block(h, scale=0.5)  # a second call of one module
        return self.head(stats["mean"]), h


class Block(nnx.Module):
    def __init__(self, residual=1.0):
        rngs = nnx.Rngs(0)
        self.norm = nnx.GroupNorm(4, num_groups=2, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.conv = nnx.Conv(4, 4, (3, 3), padding=1, rngs=rngs)
        self.act = Act()
        self.residual = residual

    def __call__(self, x, scale=1.0, cache=None):
        h = self.conv(self.activated(x)) * scale + self.residual * x
        return h, {"mean": h.mean((1, 2)), "none": cache}

    def activated(self, x):
        return self.act(self.norm(x))


class Inlined(Block):
    """Calls a function where the reference has a module."""

    def activated(self, x):
        return nnx.relu(self.norm(x))


class Shifted(Block):
    """Hands on something else."""

    def activated(self, x):
        return self.act(self.norm(x)) + 0.1


class Silent(Block):
    """Returns one output less."""

    def __call__(self, x, scale=1.0):
        h, stats = super().__call__(x, scale)
        return h, {"mean": stats["mean"]} if scale == 0.5 else {}


class Act(nnx.Module):
    def __call__(self, x):
        return nnx.relu(x)


class Net(nnx.Module):
    def __init__(self, block):
        rngs = nnx.Rngs(0)
        self.stem = nnx.Conv(3, 4, (3, 3), padding=1, rngs=rngs)
        self.block = block
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        h, _ = self.block(self.stem(x))
        h, stats = self.block(h, scale=0.5)
        return self.head(stats["mean"]), h


def reference(seed=0):
    torch.manual_seed(seed)
    net = TorchNet().eval()
    with torch.no_grad():
        for name, value in net.named_parameters():
            if value.ndim == 1:
                value.normal_().mul_(0.3).add_(float("norm.weight" in name))
    return net


def ported(net, block=None):
    """A port with the weights of a reference; `block` is right unless it is given."""
    port = Net(block or Block())
    for name, value in net.named_parameters():
        module = port
        *path, own = name.split(".")
        for part in path:
            module = getattr(module, part)
        array = value.detach().numpy()
        if array.ndim > 1:
            array = array.transpose(*range(2, array.ndim), 1, 0)
        theirs = "bias" if own == "bias" else "kernel" if array.ndim > 1 else "scale"
        getattr(module, theirs)[...] = jnp.asarray(np.ascontiguousarray(array))
    return port


def biased(net):
    """A port with one wrong weight."""
    port = ported(net)
    port.stem.bias[...] = port.stem.bias[...] + 0.5
    return port


PORTS = {
    "right": ported,
    "another weight": biased,
    "another term": lambda net: ported(net, Block(residual=1.01)),
    "hands on something else": lambda net: ported(net, Shifted()),
    "a module less": lambda net: ported(net, Inlined()),
    "an output less": lambda net: ported(net, Silent()),
}


def cases(net, clip, seed):
    noise = np.random.default_rng(seed).standard_normal((1, 4, 5, 6)).astype(np.float32)
    return (
        Case("__call__/x", (X,)),
        Case("call/noise", (noise,), path="block", kwargs={"scale": 2.0}, depth=0, floor=True),
        Case("call/h", args_from=lambda outputs: (outputs["__call__/x"]["1"],), path="block"),
    )


PAIR = Pair(
    name="nets",
    make_torch=lambda weights, config, seed: reference(seed),
    make_nnx=lambda weights, config, net: ported(net),
    cases=cases,
    rungs=(Rung("conv", ("Conv2d",), 1e-4),),
)


def found(report):
    """All that a report says of the two models, to the last digit."""
    outputs = {name: array.tobytes() for name, array in report.outputs.items()}
    return repr(
        [report.verdict, report.rows, report.faults, report.coverage, report.notes, report.weights,
         report.unexercised, report.nonfinite, report.facts.get("uncaptured"), outputs]
    )  # fmt: skip
