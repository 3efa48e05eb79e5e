"""The reference of the tiny pair, and its inputs."""

import numpy as np
import tiny
import torch

from parity.core.pair import Case
from tests.nets import TorchBlock, randomise


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.block = TorchBlock()
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        h, _ = self.block(self.stem(x))
        h, stats = self.block(h, scale=0.5)  # a second call of one module
        return {"logits": self.head(stats["mean"]), "h": h}


def make_torch(options, seed):
    torch.manual_seed(seed)
    return randomise(Net())


def cases(reference, options, seed):
    draw = np.random.default_rng(seed)
    image = draw.standard_normal((2, 3, 7, 9)).astype(np.float32)
    noise = draw.standard_normal((1, 8, 5, 4)).astype(np.float32)
    return (
        Case("__call__/image", (image,), shipped=tiny.jitted),
        Case(
            "forward/image", (image,), torch=tiny.forward, nnx=tiny.forward, depth=0,
            returned_from=lambda outputs: dict(outputs["__call__/image"]),
        ),
        Case("call/noise", (noise,), path="block", kwargs={"scale": 2.0}, depth=0, floor=True),
        Case("call/h", args_from=_from_image, path="block", floor=True),
    )  # fmt: skip


def _from_image(outputs):
    return (outputs["__call__/image"]["h"],)
