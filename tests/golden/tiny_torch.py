"""The reference of the tiny pair, and its inputs."""

import numpy as np
import tiny
import torch

from parity.core.pair import Case


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, 8)
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x, scale=1.0, cache=None):
        h = self.conv(self.act(self.norm(x))) * scale
        h += x
        return h, {"mean": h.mean((2, 3)), "none": cache}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.block = Block()
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        h, _ = self.block(self.stem(x))
        h, stats = self.block(h, scale=0.5)  # a second call of one module
        return {"logits": self.head(stats["mean"]), "h": h}


def make_torch(options, seed):
    torch.manual_seed(seed)
    reference = Net().eval()
    with torch.no_grad():
        for name, value in reference.named_parameters():
            if value.ndim == 1:
                value.normal_().mul_(0.3).add_(float("norm.weight" in name))
    return reference


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
