"""Small models on both sides, and the way between them."""

from dataclasses import dataclass

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig
from jaxvae.weights import from_torch_state, load_torch_state

# Two blocks that compress time, one shortcut, four channels a group.
SMALL = {
    "block_out_channels": (8, 16, 16),
    "down_block_types": ("CogVideoXDownBlock3D",) * 3,
    "up_block_types": ("CogVideoXUpBlock3D",) * 3,
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "latent_channels": 4,
    "temporal_compression_ratio": 4,
}


class Bridge:
    """Arrays, modules and errors between PyTorch and the port."""

    small = SMALL

    @staticmethod
    def build(precision="highest", dtype=jnp.float32):
        return {"rngs": nnx.Rngs(0), "dtype": dtype, "precision": precision}

    @staticmethod
    def first(array):
        """Channels-last numpy array to a channels-first tensor."""
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(array), -1, 1)))

    @staticmethod
    def last(tensor):
        """Channels-first tensor to a channels-last numpy array."""
        return np.moveaxis(tensor.detach().numpy(), 1, -1)

    @staticmethod
    def normal(*shape, seed=0):
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    @staticmethod
    def state(module):
        return {name: tensor.numpy() for name, tensor in module.state_dict().items()}

    @staticmethod
    def randomise(module, seed=0):
        """Give norms and biases values that no swapped or lost parameter can reproduce."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for owner in module.modules():
                for name, parameter in owner.named_parameters(recurse=False):
                    noise = torch.randn(parameter.shape, generator=generator)
                    if name == "bias":
                        parameter.copy_(0.2 * noise)
                    elif parameter.ndim == 1:
                        parameter.copy_(1 + 0.3 * noise)
                    else:
                        parameter.copy_(noise / parameter[0].numel() ** 0.5)
        return module.eval()

    def load(self, ours, theirs):
        """Randomise `theirs`, build `ours` with the same weights; both in evaluation mode.

        `ours` is a function that builds it: no initial values are drawn, which would compile one
        program for every shape.
        """
        ours = nnx.eval_shape(ours)
        load_torch_state(ours, self.state(self.randomise(theirs)))
        ours.eval()
        return ours, theirs

    @staticmethod
    def clone(vae):
        """The same weights in a model of its own, whose modes may be changed."""
        if not isinstance(vae, torch.nn.Module):
            return jax.tree.map(lambda leaf: leaf, vae)
        other = diffusers.AutoencoderKLCogVideoX(**vae.config)
        other.load_state_dict(vae.state_dict())
        return other.eval()

    @staticmethod
    def run(module, *args):
        """Call under a jit of its own: one program instead of one for every operation."""
        return jax.jit(lambda module, *args: module(*args))(module, *args)

    @staticmethod
    def error(ours, reference):
        """Largest difference relative to the largest value."""
        ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
        assert ours.shape == reference.shape
        return np.abs(ours - reference).max() / np.abs(reference).max()

    @classmethod
    def caches_agree(cls, ours, theirs, limit=2e-5):
        """Compare nested caches; return how many arrays were compared."""
        assert set(ours) == set(theirs)
        compared = 0
        for key, value in ours.items():
            if isinstance(value, dict):
                compared += cls.caches_agree(value, theirs[key], limit)
            elif value is not None:
                assert cls.error(value, cls.last(theirs[key])) < limit, key
                compared += 1
            else:
                # Only kernels of one frame: conv_y and conv_b, for which the source keeps `zq`.
                assert key in ("conv_y", "conv_b")
        return compared


@dataclass
class Pair:
    theirs: diffusers.AutoencoderKLCogVideoX
    ours: AutoencoderKLCogVideoX


@pytest.fixture(scope="session")
def bridge():
    return Bridge()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def make_pair():
    def make(**changes):
        fields = SMALL | changes
        theirs = Bridge.randomise(diffusers.AutoencoderKLCogVideoX(**fields))
        ours = from_torch_state(CogVideoXVAEConfig(**fields), Bridge.state(theirs))
        return Pair(theirs, ours)

    return make


@pytest.fixture(scope="session")
def pair(make_pair):
    """The small model on both sides; tests must not change it."""
    return make_pair()
