"""A tiny pair that can be loaded, and its port made, where torch is not installed."""

from dataclasses import replace

from flax import nnx

import parity
from parity.core.pair import Pair, Rung
from tests.ports import Block, fill


class Inlined(Block):
    """A block that calls a function where the reference has a module."""

    def __call__(self, x, scale=1.0, cache=None):
        h = self.conv(nnx.relu(self.norm(x))) * scale + self.residual * x
        return h, {"mean": h.mean((1, 2)), "none": cache}


class Net(nnx.Module):
    def __init__(self, residual=1.0, block=Block):
        rngs = nnx.Rngs(0)
        self.stem = nnx.Conv(3, 8, (3, 3), padding=1, rngs=rngs)
        self.block = block(residual)
        self.head = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        h, _ = self.block(self.stem(x))
        h, stats = self.block(h, scale=0.5)
        return {"logits": self.head(stats["mean"]), "h": h}


def forward(model, x):
    return model(x)


def jitted(model, x):
    return nnx.jit(lambda model, x: model(x))(model, x)


def make_torch(options, seed):
    import tiny_torch

    return tiny_torch.make_torch(options, seed)


def cases(reference, options, seed):
    import tiny_torch

    return tiny_torch.cases(reference, options, seed)


def pair(make=Net, change=lambda port: None):
    """The pair with a port that `make` makes and `change` changes once it has its weights."""

    def made(tensors):
        port = fill(make(), tensors)
        change(port)
        return port

    def offline(settings, tensors):
        assert settings == {"channels": 8}
        return made(tensors)

    def with_torch(options, reference):
        return made({name: value.numpy() for name, value in reference.state_dict().items()})

    return Pair(
        name="tiny",
        make_torch=make_torch,
        make_nnx=with_torch,
        cases=cases,
        rungs=(Rung("conv", ("Conv2d",), 1e-4), Rung("net", ("Net",), 10.0, free=True)),
        unexercised=lambda reference, cases: (f"{len(cases)} cases only",),
        offline=parity.Offline(
            settings=lambda reference: {"channels": reference.stem.out_channels},
            make_nnx=offline,
            methods=(forward, jitted),
        ),
    )


def more_bias(port):
    port.stem.bias[...] = port.stem.bias[...] + 0.5


PAIR = pair()
WRONG = pair(lambda: Net(residual=1.01), more_bias)
INLINED = pair(lambda: Net(residual=1.01, block=Inlined))
OTHER = replace(PAIR, name="other")
