"""The PyTorch side of the pair: diffusers' model, and the inputs for both sides."""

import warnings
from collections.abc import Sequence
from typing import Any

from jaxvae.pairs import reference
from jaxvae.pairs.inputs import LARGE_MEAN, Clip
from jaxvae.pairs.kl.ladder import CONFIGS
from jaxvae.pairs.port import call, read_config
from jaxvae.pairs.reference import Noise
from parity import Case

# diffusers warns at import about things that a user cannot change
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diffusers import AutoencoderKL as Reference
    from diffusers.models.resnet import ResnetBlock2D


def make_torch(weights: str | None, config: str | None, seed: int) -> Any:
    """Return diffusers' model: the checkpoint `weights`, or random weights of `config`."""
    settings = None if weights else read_config(CONFIGS, config)
    return reference.make_torch(Reference, weights, settings, seed)


def cases(torch_module: Any, picture: Clip, seed: int) -> tuple[Case, ...]:
    """Return the picture through encode, decode and the whole, then noise for every module.

    Noise is N(0, 1) of an odd size, and a large mean of an even one with batch 2.
    """
    config = torch_module.config
    reference.check_sample(config, picture.frames)
    channels = config.in_channels
    side = 1 << len(config.block_out_channels)
    noises = (
        Noise("normal-odd", (1, channels, side + 1, side + 3)),
        Noise("mean30-even", (2, channels, side, side), LARGE_MEAN),
    )
    synthetic = reference.synthetic(torch_module, seed, noises, call, call_torch)
    return (*reference.real(picture.frames, picture.source, "picture"), *synthetic)


def call_torch(module: Any, *inputs: Any) -> Any:
    """Call a module of diffusers'; a resnet wants to be told that there is no time embedding."""
    return module(*inputs, *[None] * isinstance(module, ResnetBlock2D))


def unexercised(torch_module: Any, cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the parts that one tile leaves out."""
    return () if torch_module.use_tiling else ("tiling was off: no seam between tiles",)
