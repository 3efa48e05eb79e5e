"""What the code of a document needs to run: arrays, models and files that it takes for granted.

A function for each document that needs any; it is called in the folder where the code runs, and
returns names that the code may use.
"""

import math
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.docs.documents import ROOT

MODEL = """
import numpy as np
import torch

images = np.random.default_rng(0).standard_normal((2, 3, 5, 7)).astype(np.float32)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return torch.nn.functional.silu(self.conv(x))
"""

PORT = """
import jax
from flax import nnx

class Port(nnx.Module):
    def __init__(self, theirs):
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))
        self.conv.kernel[...] = theirs.conv.weight.detach().numpy().transpose(2, 3, 1, 0)
        self.conv.bias[...] = theirs.conv.bias.detach().numpy()

    def __call__(self, x):
        return jax.nn.silu(self.conv(x))

ported = Port
"""


def readme() -> dict[str, Any]:
    """`torch_module`, its port and `images`; a file for each side; a small autoencoder."""
    import jax
    import numpy as np
    import torch

    Path("model.py").write_text(MODEL)
    Path("port.py").write_text(PORT)
    model, port = import_module("model"), import_module("port")
    theirs = model.Model().eval()
    names = {"torch_module": theirs, "nnx_module": port.ported(theirs), "images": model.images}
    video = autoencoder("path/to/vae")
    return names | {
        "packed": packed,
        "layered": layered,
        "jnp": jax.numpy,
        "math": math,
        "torch": torch,
        "video": video,
        "key": jax.random.key(0),
        "z": np.zeros((1, 3, 2, 2, 2), np.float32),
        "parts": [video[:, :5], *[video[:, :4]] * 11],
        "placement": jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    }


def autoencoder(folder: str) -> Any:
    """Save a tiny autoencoder as diffusers does, and return a video for it."""
    import diffusers
    import numpy as np
    import torch

    torch.manual_seed(0)
    tiny = {
        "block_out_channels": (4, 4, 4),
        "down_block_types": ("CogVideoXDownBlock3D",) * 3,
        "up_block_types": ("CogVideoXUpBlock3D",) * 3,
        "norm_num_groups": 2,
        "layers_per_block": 1,
        "latent_channels": 2,
    }
    diffusers.AutoencoderKLCogVideoX(**tiny).save_pretrained(folder)
    return np.random.default_rng(0).uniform(-1, 1, (1, 9, 8, 8, 3)).astype(np.float32)


def layer() -> Any:
    """A layer of the reference."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.fc(x))

    return Layer()


def layered() -> tuple[Any, Any, Any]:
    """A reference of two layers, their parameters as a port that is a function takes them."""
    import jax.numpy as jnp
    import numpy as np
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([layer(), layer()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    kernels = [jnp.asarray(layer.fc.weight.detach().numpy().T) for layer in model.layers]
    params = {"layers": [{"fc": {"kernel": kernel}} for kernel in kernels]}
    return model, params, np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def packed() -> tuple[Any, Any, Any]:
    """A reference, a port that holds several of its tensors in one leaf, or one in several."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch
    from flax import nnx

    class Attn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("to_q", "to_k", "to_v"):
                setattr(self, name, torch.nn.Linear(4, 4, bias=False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.to_q(x) * self.to_k(x) + self.to_v(x)

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj_weight = torch.nn.Parameter(torch.randn(12, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = torch.nn.functional.linear(x, self.in_proj_weight).chunk(3, -1)
            return q * k + v

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = Attn()
            self.layers = torch.nn.ModuleList([layer(), layer()])
            self.mha = Heads()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.attn(x)
            for layer in self.layers:
                x = layer(x)
            return self.mha(x)

    class Leaf(nnx.Module):
        def __init__(self, **leaves: jax.Array) -> None:
            for name, leaf in leaves.items():
                setattr(self, name, nnx.Param(leaf))

    class PortAttn(nnx.Module):
        def __init__(self, theirs: Attn) -> None:
            parts = [getattr(theirs, name).weight for name in ("to_q", "to_k", "to_v")]
            self.qkv = Leaf(kernel=jnp.concatenate([_array(part).T for part in parts], -1))

        def __call__(self, x: jax.Array) -> jax.Array:
            q, k, v = jnp.split(x @ self.qkv.kernel[...], 3, -1)
            return q * k + v

    class Layers(nnx.Module):
        def __init__(self, theirs: Any) -> None:
            self.fc = Leaf(kernel=jnp.stack([_array(one.fc.weight).T for one in theirs]))

        def __call__(self, x: jax.Array) -> jax.Array:
            for kernel in self.fc.kernel[...]:
                x = jnp.tanh(x @ kernel)
            return x

    class PortHeads(nnx.Module):
        def __init__(self, theirs: Heads) -> None:
            for name, part in zip(
                "qkv", _array(theirs.in_proj_weight).reshape(3, 4, 4), strict=True
            ):
                setattr(self, name, nnx.Param(part.T))

        def __call__(self, x: jax.Array) -> jax.Array:
            return (x @ self.q[...]) * (x @ self.k[...]) + x @ self.v[...]

    class Port(nnx.Module):
        def __init__(self, theirs: Model) -> None:
            self.attn, self.layers = PortAttn(theirs.attn), Layers(theirs.layers)
            self.mha = PortHeads(theirs.mha)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.mha(self.layers(self.attn(x)))

    theirs = Model().eval()
    return theirs, Port(theirs), np.ones((2, 4), np.float32)


def _array(tensor: Any) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(tensor.detach().numpy())


def jaxvae_page() -> dict[str, Any]:
    """The sample as `clip.mp4`, and the small model where a clone has it."""
    import shutil

    from jaxvae.pairs.inputs import sample_file

    sample = sample_file()
    assert sample is not None
    shutil.copy(sample, "clip.mp4")
    model = Path("tests/data/small-vae")
    model.parent.mkdir(parents=True)
    model.symlink_to(ROOT / model)
    return {}


CONTEXT = {"README.md": readme, "docs/jaxvae.md": jaxvae_page}
