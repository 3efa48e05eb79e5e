"""Costs of a step to each device, by closed formulae from the configuration.

The compiler's own figures are beside these in `tools/measure_sharding.py`, and a test compares
them. Counted are the products of convolutions, the border lines that neighbours exchange for them,
the frames that are passed on along time, and the sums of group statistics.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.run.chunks import chunk_bounds

SUMS = 3
"""All-reductions of a group norm: the mean, the mean of what is left, and the variance."""


class Split(NamedTuple):
    """Along how many devices each axis is split."""

    height: int = 1
    width: int = 1
    time: int = 1


@dataclass(frozen=True)
class Layer:
    """A convolution or a norm of one sample: output size, channels, kernel, and what is sent.

    `halo` lines of `frames_in` frames come from the neighbours, and `past` frames from the chunk
    before. A norm has `cin` channels and no kernel.
    """

    frames: int
    height: int
    width: int
    cin: int
    cout: int = 0
    taps: tuple[int, int, int] = (1, 1, 1)
    frames_in: int = 0
    halo: int = 0
    past: int = 0
    stride: int = 1
    norm: bool = False


@dataclass(frozen=True)
class Cost:
    """Work of one device in a step: operations, bytes that it gets, and messages."""

    flops: float = 0
    halo: float = 0
    past: float = 0
    sums: float = 0
    messages: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Add each of them."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Cost(*(a + b for a, b in pairs))

    @property
    def bytes(self) -> float:
        """All that the device gets."""
        return self.halo + self.past + self.sums


def _causal(t: int, h: int, w: int, cin: int, cout: int) -> Layer:
    return Layer(t, h, w, cin, cout, (3, 3, 3), frames_in=t + 2, halo=2, past=2)


def _norm(t: int, h: int, w: int, c: int, latent: int) -> Iterator[Layer]:
    yield Layer(t, h, w, c, norm=True)
    if latent:  # scale and shift of a spatial norm
        yield from [Layer(t, h, w, latent, c)] * 2


def _resnet(t: int, h: int, w: int, cin: int, cout: int, latent: int = 0) -> Iterator[Layer]:
    yield from _norm(t, h, w, cin, latent)
    yield _causal(t, h, w, cin, cout)
    yield from _norm(t, h, w, cout, latent)
    yield _causal(t, h, w, cout, cout)
    if cin != cout:
        yield Layer(t, h, w, cin, cout)


def encoder(config: CogVideoXVAEConfig, t: int, h: int, w: int) -> Iterator[Layer]:
    """Yield the layers for a chunk of `t` frames of `h` by `w` pixels."""
    channels = config.block_out_channels
    yield _causal(t, h, w, config.in_channels, channels[0])
    c = channels[0]
    for level, wider in enumerate(channels):
        for _ in range(config.layers_per_block):
            yield from _resnet(t, h, w, c, wider)
            c = wider
        if level < len(channels) - 1:
            t = t // 2 + t % 2 if level < config.time_levels else t
            h, w = h // 2, w // 2
            # One line for the padding and one for the convolution. Compiled programs send more with
            # more devices: the padded size is no multiple of them, so that all lines move a little.
            yield Layer(t, h, w, c, c, (1, 3, 3), frames_in=t, halo=2, stride=2)
    for _ in range(2):
        yield from _resnet(t, h, w, c, c)
    yield from _norm(t, h, w, c, 0)
    yield _causal(t, h, w, c, 2 * config.latent_channels)


def decoder(config: CogVideoXVAEConfig, t: int, h: int, w: int) -> Iterator[Layer]:
    """Yield the layers for a chunk of `t` latent frames of `h` by `w`."""
    channels, latent = config.block_out_channels[::-1], config.latent_channels
    c = channels[0]
    yield _causal(t, h, w, latent, c)
    for _ in range(2):
        yield from _resnet(t, h, w, c, c, latent)
    for level, narrower in enumerate(channels):
        for _ in range(config.layers_per_block + 1):
            yield from _resnet(t, h, w, c, narrower, latent)
            c = narrower
        if level < len(channels) - 1:
            if level < config.time_levels and t > 1:
                t = 2 * t - t % 2
            h, w = 2 * h, 2 * w
            yield Layer(t, h, w, c, c, (1, 3, 3), frames_in=t, halo=2)
    yield from _norm(t, h, w, c, latent)
    yield _causal(t, h, w, c, config.out_channels)


def _products(size: int, taps: int, padded: bool, devices: int) -> float:
    # As XLA counts: no products with padding, but those with lines that come from a neighbour.
    whole = size * taps
    return (whole - (taps - 1) if padded and devices == 1 else whole) / devices


def cost(layer: Layer, split: Split, width: int, rounds: bool) -> Cost:
    """Return the cost for one device, of numbers of `width` bytes (sums are float32).

    `rounds` says that chunks run side by side, one on each device along time.
    """
    height, columns = layer.height / split.height, layer.width / split.width
    if layer.norm:
        devices = split.height * split.width
        if devices == 1:
            return Cost()
        return Cost(sums=SUMS * 4 * layer.cin, messages=SUMS * 2 * math.ceil(math.log2(devices)))
    _, kh, kw = layer.taps
    padded = layer.stride == 1
    flops = (
        2
        * layer.frames
        * layer.taps[0]
        * layer.cin
        * layer.cout
        * _products(layer.height, kh, padded, split.height)
        * _products(layer.width, kw, padded, split.width)
    )
    halo = past = messages = 0.0
    frame = layer.stride * layer.cin * width
    for devices, line in ((split.height, columns), (split.width, height)):
        if devices > 1 and layer.halo:
            halo += layer.halo * layer.frames_in * line * frame
            messages += layer.halo
    if rounds and split.time > 1 and layer.past:
        past = layer.past * height * columns * layer.cin * width
        messages += 1
    return Cost(flops, halo, past, 0, messages)


def step_cost(
    config: CogVideoXVAEConfig,
    direction: str,
    size: tuple[int, int, int],
    split: Split,
    width: int,
    rounds: bool = True,
) -> Cost:
    """Return what one chunk of `size` (frames, height, width) costs each device, per sample."""
    layers = {"encode": encoder, "decode": decoder}[direction](config, *size)
    return sum((cost(layer, split, width, rounds) for layer in layers), Cost())


@dataclass(frozen=True)
class Chip:
    """Operations a second, bytes a second of a link in one direction, seconds of a message."""

    flops: float
    link: float
    latency: float


def seconds(cost: Cost, chip: Chip) -> float:
    """Return how long a device takes: nothing overlaps, and all it gets comes over one link."""
    return cost.flops / chip.flops + cost.bytes / chip.link + cost.messages * chip.latency


def call_seconds(
    config: CogVideoXVAEConfig,
    direction: str,
    size: tuple[int, int, int],
    chunk: int,
    split: Split,
    width: int,
    chip: Chip,
) -> tuple[float, Cost]:
    """Return the time of one sample of `size` (frames, height, width), and what it costs a chip."""
    frames, *image = size
    first, *rest = chunk_bounds(frames, chunk)
    begin = step_cost(config, direction, (first[1], *image), split, width, rounds=False)
    total = begin
    if rest:
        again = step_cost(config, direction, (chunk, *image), split, width)
        for _ in range(math.ceil(len(rest) / split.time)):
            total = total + again
    return seconds(total, chip), total
