"""Small models on both sides, and the way between them."""

import copy
from dataclasses import dataclass

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax import monitoring

from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig
from jaxvae.io.weights import load_torch_state
from jaxvae.layers import convolution


def blocks(*channels):
    """Return the part of a configuration that says which blocks there are."""
    return {
        "block_out_channels": channels,
        "down_block_types": ("CogVideoXDownBlock3D",) * len(channels),
        "up_block_types": ("CogVideoXUpBlock3D",) * len(channels),
    }


# Two blocks that compress time, one shortcut, four channels a group.
SMALL = {
    **blocks(8, 16, 16),
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
        other = type(vae)(**vae.config)
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


# One block that resamples, four channels a group, and a shortcut in every direction.
TINY = {
    **blocks(4, 8),
    "norm_num_groups": 2,
    "layers_per_block": 1,
    "latent_channels": 2,
    "temporal_compression_ratio": 2,
}


class Objective:
    """A scalar of the tiny model on both sides: sums of encode and decode, and a training loss.

    Which of them count is an argument, so that one compiled program serves all tests. 13 frames by
    4 are 5 + 4 + 4, and their 7 latent frames by 2 are 3 + 2 + 2: gradients cross caches twice.
    """

    tiny = TINY
    video = (1, 13, 8, 12, 3)
    latent = (1, 7, 4, 6, 2)

    def __init__(self, pair):
        self.theirs, self.ours = pair.theirs, pair.ours
        for vae in (pair.theirs, pair.ours):
            vae.num_sample_frames_batch_size = 4
        self.exact = copy.deepcopy(pair.theirs).double()
        # Gradients by the module (its parameters), the video, and what is added to the latent.
        gradients = jax.value_and_grad(self.value, argnums=(0, 1, 2))
        self.gradients = jax.jit(gradients)

    @classmethod
    def inputs(cls, seed=0, **counts):
        """Video, offset, noise and the weights of `encode`, `decode` and `loss`: 1 if named."""
        latent, video = cls.latent, cls.video
        weights = {
            "encode": Bridge.normal(*latent[:-1], 2 * latent[-1], seed=seed + 1),
            "decode": Bridge.normal(*video, seed=seed + 2),
            "loss": np.ones((), np.float32),
        }
        weights = {key: np.float32(counts.get(key, 0)) * value for key, value in weights.items()}
        x, noise = Bridge.normal(*video, seed=seed + 3), Bridge.normal(*latent, seed=seed + 4)
        return x, np.zeros(latent, np.float32), noise, weights

    @staticmethod
    def value(vae, x, offset, noise, weights):
        posterior = vae.encode(x)
        y = vae.decode(posterior.sample(noise=noise) + offset)
        loss = jnp.mean(jnp.square(y - x)) + 1e-3 * jnp.mean(posterior.kl())
        encode = jnp.sum(weights["encode"] * posterior.parameters)
        return encode + jnp.sum(weights["decode"] * y) + weights["loss"] * loss

    @staticmethod
    def their_value(vae, x, offset, noise, weights):
        """The same of PyTorch; every argument is channels-first."""
        posterior = vae.encode(x).latent_dist
        y = vae.decode(posterior.mean + posterior.std * noise + offset).sample
        loss = (y - x).square().mean() + 1e-3 * posterior.kl().mean()
        encode = (weights["encode"] * posterior.parameters).sum()
        return encode + (weights["decode"] * y).sum() + weights["loss"] * loss

    @classmethod
    def tensors(cls, vae, x, offset, noise, weights):
        """Channels-first tensors of the model's type."""
        first = [Bridge.first(a).to(vae.dtype) for a in (x, offset, noise)]
        return *first, {
            key: (Bridge.first(value) if value.ndim else torch.tensor(value)).to(vae.dtype)
            for key, value in weights.items()
        }

    @classmethod
    def their_gradients(cls, vae, *arguments):
        """PyTorch's value and gradients, by parameter name and `x` and `offset`, channels-last."""
        x, offset, noise, weights = cls.tensors(vae, *arguments)
        x.requires_grad_(), offset.requires_grad_()
        vae.zero_grad()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # tensors as small as these: 0.1 s, where waiting threads take 5
        try:
            with torch.enable_grad():
                value = cls.their_value(vae, x, offset, noise, weights)
                value.backward()
        finally:
            torch.set_num_threads(threads)
        found = dict(vae.named_parameters()) | {"x": x, "offset": offset}
        found = {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in found.items()}
        by_name = {name: grad.numpy().copy() for name, grad in found.items()}
        return float(value.detach()), by_name | {
            name: Bridge.last(found[name]) for name in ("x", "offset")
        }

    @staticmethod
    def by_name(module):
        """A module's parameters, or gradients by them, as PyTorch names and orders them."""
        found = {}
        for path, variable in nnx.to_flat_state(nnx.state(module, nnx.Param)):
            *owner, name = map(str, path)
            array = np.asarray(variable[...])
            if name == "kernel":
                array = np.moveaxis(array, (-1, -2), (0, 1))
            found[".".join([*owner, "bias" if name == "bias" else "weight"])] = array
        return found


@pytest.fixture
def compiled():
    """The programs that XLA compiled, or fetched from a cache, in the test."""
    found = []

    def listen(event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(kwargs.get("fun_name", ""))

    monitoring.register_event_duration_secs_listener(listen)
    yield found
    monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="session")
def objective(make_pair):
    return Objective(make_pair(**TINY))


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
        ours = AutoencoderKLCogVideoX.from_torch_state(
            CogVideoXVAEConfig(**fields), Bridge.state(theirs)
        )
        return Pair(theirs, ours)

    return make


@pytest.fixture(scope="session")
def pair(make_pair):
    """The small model on both sides; tests must not change it."""
    return make_pair()


@pytest.fixture(params=["cpu", "accelerator"])
def platform(request, monkeypatch):
    """Both formulations of the convolution; an accelerator's runs on CPU as well."""
    if request.param == "accelerator":
        monkeypatch.setattr(convolution, "_products_on_cpu", convolution._products)
    convolution._convolve.clear_cache()
    yield
    convolution._convolve.clear_cache()
