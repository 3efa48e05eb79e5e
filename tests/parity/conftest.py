"""A small pair with what makes capture hard: chunks, caches, shared modules, in-place writes."""

import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.store import Store
from tests.nets import TorchBlock, randomise
from tests.ports import Block, copy_weights, nnx_of
from tests.reports import compare


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.block = TorchBlock()
        self.blocks = torch.nn.ModuleList([TorchBlock()])
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        h = self.stem(x)
        h, _ = self.block(h)
        h, _ = self.block(h, scale=0.5)  # a second call of one module
        h, stats = self.blocks[0](h)
        return self.head(stats["mean"]), h

    def features(self, x):
        return self.block(self.stem(x))[0]


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), padding=1, rngs=rngs)
        self.block = Block()
        self.blocks = nnx.List([Block()])
        self.head = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        h = self.stem(x)
        h, _ = self.block(h)
        h, _ = self.block(h, scale=0.5)
        h, stats = self.blocks[0](h)
        return self.head(stats["mean"]), h

    def features(self, x):
        return self.block(self.stem(x))[0]


def make_pair(seed=0):
    torch.manual_seed(seed)
    reference = randomise(TorchNet())
    port = copy_weights(reference, NnxNet(nnx.Rngs(0)))
    port.eval()
    return reference, port


def renamed(port, **names):
    """The same port under other names of its parts."""
    of = {part: names.get(part, part) for part in ("stem", "block", "blocks", "head")}

    def call(self, x):
        stem, block, blocks, head = (getattr(self, name) for name in of.values())
        h = stem(x)
        h, _ = block(h)
        h, _ = block(h, scale=0.5)
        h, stats = blocks[0](h)
        return head(stats["mean"]), h

    return nnx_of(call, **{name: getattr(port, part) for part, name in of.items()})


@pytest.fixture(scope="session")
def new_pair():
    """Makes a PyTorch net and its correct port from a seed."""
    return make_pair


class WrongBlock(Block):
    """Hands its first call an input that is upside down."""

    def __call__(self, x, scale=1.0):
        h = self.conv(self.act(self.norm(x[:, ::-1]))) * scale + x
        return h, {"mean": h.mean((1, 2)), "none": None}


@pytest.fixture(scope="session")
def faulty(image):
    """The report of a port with two faults: a bias in `stem`, and a child input of `blocks.0`."""
    reference, port = make_pair()
    port.blocks[0] = WrongBlock()
    copy_weights(reference, port)
    port.stem.bias[...] = port.stem.bias[...] + 1
    port.eval()
    return compare(reference, port, (image,))


@pytest.fixture
def pair():
    """A PyTorch net and its correct port."""
    return make_pair()


@pytest.fixture
def store():
    """What holds the arrays of a recording."""
    with Store() as store:
        yield store


@pytest.fixture(scope="session")
def image():
    """A batch of two channel-first images, no two axes of one length."""
    return np.random.default_rng(1).standard_normal((2, 3, 7, 9)).astype(np.float32)


@pytest.fixture(scope="session")
def report(new_pair, image):
    """Of a port with a wrong bias in `stem`, its products emulated too."""
    reference, port = new_pair()
    port.stem.bias[...] = port.stem.bias[...] + 1
    return parity.compare(reference, port, (image,), check_compiled=False, emulate="tf32")
