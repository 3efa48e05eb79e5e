"""A correct port that is built otherwise than the reference passes; what is wrong in one is found
where it is all the same, and nothing else is named."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mutants import MistakenDownsample, convolve_frames, mistaken_pool_and_pad

import parity
from jaxvae.layers.convolution import Conv2d, Conv3d, convolve
from jaxvae.models.cogvideox.blocks import DownBlock3D, MidBlock3D, ResnetBlock3D
from jaxvae.models.cogvideox.causal_convolution import CausalConv3d
from jaxvae.models.cogvideox.encoder_decoder import Encoder3D
from parity.capture.nnx import submodules

CHUNK = np.random.default_rng(3).standard_normal((1, 3, 5, 16, 16)).astype(np.float32)
BLOCKS = ["down_blocks.0", "down_blocks.1"]
"""Those that compress time."""
SAMPLERS = [f"{block}.downsamplers.0" for block in BLOCKS]


def become(module, cls):
    """Give a module the code of another class; it keeps what it holds."""
    object.__setattr__(module, "__class__", cls)


def spoil_samplers(port):
    for block in port.down_blocks:
        if block.downsamplers:
            block.downsamplers[0] = MistakenDownsample(block.downsamplers[0])


class Wrapped(nnx.Module):
    def __init__(self, conv):
        self.conv = conv

    def __call__(self, x):
        return self.conv(x)


def wrap(port, wrong):
    """Every convolution one level deeper."""
    if wrong:
        spoil_samplers(port)
    for module in submodules(port).values():
        for name, child in list(vars(module).items()):
            if isinstance(child, (Conv2d, Conv3d)):
                setattr(module, name, Wrapped(child))


@partial(jax.jit, static_argnums=1)
def pool_and_pad(x, compress_time):
    if compress_time:
        odd = x.shape[1] % 2
        pairs = x[:, odd:].reshape(x.shape[0], -1, 2, *x.shape[2:])
        x = jnp.concatenate([x[:, :odd], pairs.mean(2)], axis=1)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))


class Pooling(DownBlock3D):
    """Pools and pads by itself, and hands its downsampler what is left to do."""

    def __call__(self, hidden_states, temb=None, zq=None, conv_cache=None):
        cache = {}
        for i, resnet in enumerate(self.resnets):
            hidden_states, cache[f"resnet_{i}"] = resnet(hidden_states)
        if self.samples:
            hidden_states = self.sample(self.pool_and_pad(hidden_states, self.compress_time))
        return hidden_states, cache

    def sample(self, x):
        return self.downsamplers[0](x)


class Rest(nnx.Module):
    """What is left of a downsampler then."""

    def __init__(self, right):
        self.conv = right.conv

    def __call__(self, x):
        return convolve_frames(self.conv, x)


def pool_in_block(port, wrong, cls=Pooling):
    """Pooling and padding moved from the downsampler into its block."""
    for block in port.down_blocks:
        become(block, cls)
        block.pool_and_pad = mistaken_pool_and_pad if wrong else pool_and_pad
        block.samples = block.downsamplers is not None
        if block.samples:
            block.compress_time = block.downsamplers[0].compress_time
            block.downsamplers[0] = Rest(block.downsamplers[0])


class Inlined(Pooling):
    """Does what the downsampler did, and calls its convolution."""

    def sample(self, x):
        return convolve_frames(self.downsamplers[0].conv, x)


def inline(port, wrong):
    """Activations are functions, and the downsampler's code is its block's."""
    pool_in_block(port, wrong, Inlined)
    silu = jax.jit(lambda x: x * jax.nn.sigmoid(x))
    port.conv_act = silu
    for module in submodules(port).values():
        if isinstance(module, ResnetBlock3D):
            module.nonlinearity = silu


class WrittenOut(Pooling):
    """Holds what the downsampler's convolution held."""

    def sample(self, x):
        return convolve_frames(self.convolve, x)

    def convolve(self, x):
        kernel, bias = self.kernel[...][None], self.bias[...]
        return convolve(x[:, None], kernel, bias, stride=(1, 2, 2))[:, 0]


def write_out(port, wrong):
    """The downsampler's convolution is a function too: there is no module left of it."""
    pool_in_block(port, wrong, WrittenOut)
    for block in port.down_blocks:
        if block.samples:
            conv = block.downsamplers[0].conv
            block.kernel, block.bias = conv.kernel, conv.bias
            block.downsamplers = None


class OneConv(CausalConv3d):
    def __call__(self, inputs):
        return super().__call__(inputs)[0]


class OneResnet(ResnetBlock3D):
    def __call__(self, inputs):
        x = self.conv1(self.nonlinearity(self.norm1(inputs)))
        x = self.conv2(self.dropout(self.nonlinearity(self.norm2(x))))
        return x + (inputs if self.conv_shortcut is None else self.conv_shortcut(inputs))


class OneBlock(DownBlock3D):
    def __call__(self, hidden_states):
        for module in (*self.resnets, *(self.downsamplers or ())):
            hidden_states = module(hidden_states)
        return hidden_states


class OneMidBlock(MidBlock3D):
    def __call__(self, hidden_states):
        for module in self.resnets:
            hidden_states = module(hidden_states)
        return hidden_states


class OneEncoder(Encoder3D):
    def __call__(self, sample):
        x = self.conv_in(sample)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(self.conv_act(self.norm_out(self.mid_block(x))))


def forget(port, wrong):
    """For a single chunk: no call takes or returns a cache."""
    if wrong:
        spoil_samplers(port)
    for module in submodules(port).values():
        for cls in (OneConv, OneResnet, OneBlock, OneMidBlock, OneEncoder):
            if type(module) is cls.__base__:
                become(module, cls)


@pytest.fixture
def encoder(small_nnx):
    """A port of the small encoder that a test may take apart."""
    return nnx.clone(small_nnx.encoder)


def compare(small_torch, encoder):
    return parity.compare(small_torch.encoder, encoder, (CHUNK,))


@pytest.mark.parametrize(
    ("restructure", "reason", "inlined"),
    [
        (wrap, "", 0),
        (pool_in_block, "receives another shape (1, 3, 17, 17, 16)", 2),
        (inline, "the port does not call it: counted with the call around it", 8),
        (write_out, "the port does not call it: counted with the call around it", 4),
    ],
    ids=["wrap", "pool_in_block", "inline", "write_out"],
)
def test_a_correct_port_passes(restructure, reason, inlined, small_torch, encoder):
    restructure(encoder, wrong=False)
    report = compare(small_torch, encoder)
    assert (report.verdict, report.faults, report.notes) == ("PASS", (), ())
    assert len(report.coverage.inlined) == inlined
    assert not inlined or any(reason in why for why in report.coverage.inlined.values())
    tensors = len(small_torch.encoder.state_dict())
    assert report.coverage.matched_parameters == report.coverage.parameters == tensors


def test_a_correct_port_without_caches_warns(small_torch, encoder):
    forget(encoder, wrong=False)
    report = compare(small_torch, encoder)
    assert (report.verdict, report.faults) == ("WARN", ())
    (note,) = report.notes
    assert note.startswith("only the reference returns 12 of the outputs: <root>#1.conv_in, ")
    table = report.table
    assert set(table[table.verdict != "PASS"].leaf.str.split(".").str[0]) == {"1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("restructure", "guilty"),
    [
        (wrap, SAMPLERS),
        (pool_in_block, BLOCKS),
        (inline, BLOCKS),
        (write_out, BLOCKS),
        (forget, SAMPLERS),
    ],
)
def test_the_mistaken_pooling_is_named(restructure, guilty, small_torch, encoder):
    restructure(encoder, wrong=True)
    report = compare(small_torch, encoder)
    assert report.verdict == "FAIL"
    assert [(fault.path, fault.cause) for fault in report.faults] == [
        (path, "reshape_order") for path in guilty
    ]
