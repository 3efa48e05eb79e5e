"""AutoencoderKL of diffusers with attention in its middle; the port has other modules: a resampler
for down and up, attention with one kernel, and no dropout or container.
"""

import jax
import jax.numpy as jnp
from diffusers import AutoencoderKL
from flax import nnx

from tests.ports.loading import give, noise, of, randomise

WIDTHS, GROUPS = (8, 16), 4


def norm(width, rngs):
    """Group norm."""
    options = {"epsilon": 1e-6, "use_fast_variance": False, "rngs": rngs}
    return nnx.GroupNorm(width, num_groups=GROUPS, **options)


def conv(inner, width, rngs, size=3):
    """Convolution of the same size."""
    return nnx.Conv(inner, width, (size, size), padding=size // 2, rngs=rngs)


class Res(nnx.Module):
    """Two norms and convolutions around a sum."""

    def __init__(self, inner, width, rngs):
        self.n1, self.c1 = norm(inner, rngs), conv(inner, width, rngs)
        self.n2, self.c2 = norm(width, rngs), conv(width, width, rngs)
        self.nin = conv(inner, width, rngs, 1) if inner != width else None

    def __call__(self, x):
        h = self.c1(nnx.silu(self.n1(x)))
        h = self.c2(nnx.silu(self.n2(h)))
        return h + (x if self.nin is None else self.nin(x))


class Attend(nnx.Module):
    """Every place sees every other."""

    def __init__(self, width, rngs):
        self.norm = norm(width, rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.proj = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x):
        b, h, w, c = x.shape
        q, k, v = jnp.split(self.qkv(self.norm(x)).reshape(b, h * w, 1, 3 * c), 3, -1)
        return x + self.proj(jax.nn.dot_product_attention(q, k, v).reshape(x.shape))


class Tower(nnx.Module):
    """A chain of parts between two convolutions."""

    def __init__(self, inner, start, parts, width, out, rngs):
        self.begin = conv(inner, start, rngs)
        self.parts = nnx.List(parts)
        self.norm, self.end = norm(width, rngs), conv(width, out, rngs)

    def __call__(self, x):
        x = self.begin(x)
        for part in self.parts:
            x = part(x)
        return self.end(nnx.silu(self.norm(x)))


class Half(nnx.Module):
    """A convolution with a stride of two."""

    def __init__(self, width, rngs):
        pad = ((0, 1), (0, 1))
        self.conv = nnx.Conv(width, width, (3, 3), 2, padding=pad, rngs=rngs)

    def __call__(self, x):
        return self.conv(x)


class Double(nnx.Module):
    """Every place twice, and a convolution."""

    def __init__(self, width, rngs):
        self.conv = conv(width, width, rngs)

    def __call__(self, x):
        return self.conv(x.repeat(2, 1).repeat(2, 2))


class Vae(nnx.Module):
    """Encoder, mean, decoder."""

    def __init__(self, rngs):
        a, b = WIDTHS
        middle = [Res(b, b, rngs), Attend(b, rngs), Res(b, b, rngs)]
        down = [Res(a, a, rngs), Half(a, rngs), Res(a, b, rngs), *middle]
        self.encoder = Tower(3, a, down, b, 8, rngs)
        middle = [Res(b, b, rngs), Attend(b, rngs), Res(b, b, rngs)]
        up = [Res(b, b, rngs), Res(b, b, rngs), Double(b, rngs), Res(b, a, rngs), Res(a, a, rngs)]
        self.decoder = Tower(4, b, [*middle, *up], a, 3, rngs)
        self.quant, self.dequant = conv(8, 8, rngs, 1), conv(4, 4, rngs, 1)

    def __call__(self, image):
        mean = jnp.split(self.quant(self.encoder(image)), 2, -1)[0]
        return self.decoder(self.dequant(mean))


def _res(port, one):
    give(port.n1, one.norm1)
    give(port.c1, one.conv1)
    give(port.n2, one.norm2)
    give(port.c2, one.conv2)
    if port.nin is not None:
        give(port.nin, one.conv_shortcut)


def _tower(port, coder, parts):
    give(port.begin, coder.conv_in)
    give(port.norm, coder.conv_norm_out)
    give(port.end, coder.conv_out)
    for part, one in zip(port.parts, parts, strict=True):
        if isinstance(part, Res):
            _res(part, one)
        elif isinstance(part, Attend):
            give(part.norm, one.group_norm)
            threes = one.to_q, one.to_k, one.to_v
            part.qkv.kernel[...] = jnp.concatenate([of(x.weight).T for x in threes], 1)
            part.qkv.bias[...] = jnp.concatenate([of(x.bias) for x in threes])
            give(part.proj, one.to_out[0])
        else:
            give(part.conv, one.conv)


def make():
    """(reference, port, arguments)."""
    ref = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=WIDTHS,
        layers_per_block=1,
        norm_num_groups=GROUPS,
        latent_channels=4,
    )
    ref, port = randomise(ref), Vae(nnx.Rngs(0))
    give(port.quant, ref.quant_conv)
    give(port.dequant, ref.post_quant_conv)
    for coder, tower in ((ref.encoder, port.encoder), (ref.decoder, port.decoder)):
        middle = coder.mid_block
        parts = [middle.resnets[0], middle.attentions[0], middle.resnets[1]]
        if tower is port.encoder:
            one, two = coder.down_blocks
            parts = [*one.resnets, one.downsamplers[0], *two.resnets, *parts]
        else:
            one, two = coder.up_blocks
            parts = [*parts, *one.resnets, one.upsamplers[0], *two.resnets]
        _tower(tower, coder, parts)
    return ref, port, (noise(2, 3, 12, 8),)
