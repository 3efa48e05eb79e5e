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
    """A small autoencoder, and a video for it."""
    return {"video": autoencoder("path/to/vae")}


def comparison() -> dict[str, Any]:
    """`torch_module`, its port and `images`; a file for each side."""
    import jax
    import torch

    import parity

    Path("model.py").write_text(MODEL)
    Path("port.py").write_text(PORT)
    model, port = import_module("model"), import_module("port")
    theirs = model.Model().eval()
    names = {"torch_module": theirs, "nnx_module": port.ported(theirs), "images": model.images}
    return names | {
        "packed": packed,
        "layered": layered,
        "jnp": jax.numpy,
        "math": math,
        "parity": parity,
        "torch": torch,
    }


def causes() -> dict[str, Any]:
    """The same tokens, images and linear layer for both frameworks."""
    import jax
    import numpy as np
    import torch
    from flax import nnx

    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    x, image = (draw.standard_normal(shape, np.float32) for shape in ((2, 6, 8), (2, 4, 6, 8)))
    linear, dense = torch.nn.Linear(8, 8), nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    dense.kernel[...], dense.bias[...] = _array(linear.weight).T, _array(linear.bias)
    return {
        "F": torch.nn.functional,
        "dense": dense,
        "image": jax.numpy.asarray(image),
        "jax": jax,
        "jnp": jax.numpy,
        "lax": jax.lax,
        "linear": linear,
        "nnx": nnx,
        "np": np,
        "rngs": nnx.Rngs(1),
        "t": torch.from_numpy(x),
        "t_image": torch.from_numpy(np.moveaxis(image, -1, 1).copy()),
        "torch": torch,
        "x": jax.numpy.asarray(x),
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


def stack() -> Any:
    """Two layers of the reference."""
    import torch

    from tests.nets import torch_of

    return torch.nn.ModuleList(
        torch_of(lambda self, x: torch.tanh(self.fc(x)), fc=torch.nn.Linear(4, 4, bias=False))
        for _ in range(2)
    )


def _in_turn(layers: Any, x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def layered() -> tuple[Any, Any, Any]:
    """A reference of two layers, their parameters as a port that is a function takes them."""
    import numpy as np

    from tests.nets import torch_of

    model = torch_of(lambda self, x: _in_turn(self.layers, x), layers=stack())
    params = {"layers": [{"fc": {"kernel": _array(layer.fc.weight).T}} for layer in model.layers]}
    return model, params, np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def packed() -> tuple[Any, Any, Any]:
    """A reference, a port that holds several of its tensors in one leaf, or one in several."""
    import jax.numpy as jnp
    import numpy as np
    import torch
    from flax import nnx

    from tests.nets import torch_of
    from tests.ports import nnx_of

    def gated(x: Any, weight: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.nn.functional.linear(x, weight).chunk(3, -1)
        return q * k + v

    names = ("to_q", "to_k", "to_v")
    theirs = torch_of(
        lambda self, x: self.mha(_in_turn(self.layers, self.attn(x))),
        attn=torch_of(lambda self, x: self.to_q(x) * self.to_k(x) + self.to_v(x),
                      **{name: torch.nn.Linear(4, 4, bias=False) for name in names}),
        layers=stack(),
        mha=torch_of(lambda self, x: gated(x, self.in_proj_weight),
                     in_proj_weight=torch.nn.Parameter(torch.randn(12, 4))),
    ).eval()  # fmt: skip

    def leaf(kernel: Any) -> nnx.Module:
        """Hold a kernel and run nothing."""
        return nnx_of(lambda self: None, kernel=nnx.Param(kernel))

    def attend(self: Any, x: Any) -> Any:
        q, k, v = jnp.split(x @ self.qkv.kernel[...], 3, -1)
        return q * k + v

    def scanned(self: Any, x: Any) -> Any:
        for kernel in self.fc.kernel[...]:
            x = jnp.tanh(x @ kernel)
        return x

    kernels = [_array(getattr(theirs.attn, name).weight).T for name in names]
    stacked = jnp.stack([_array(one.fc.weight).T for one in theirs.layers])
    heads = _array(theirs.mha.in_proj_weight).reshape(3, 4, 4)
    port = nnx_of(
        lambda self, x: self.mha(self.layers(self.attn(x))),
        attn=nnx_of(attend, qkv=leaf(jnp.concatenate(kernels, -1))),
        layers=nnx_of(scanned, fc=leaf(stacked)),
        mha=nnx_of(lambda self, x: (x @ self.q[...]) * (x @ self.k[...]) + x @ self.v[...],
                   **{name: nnx.Param(part.T) for name, part in zip("qkv", heads, strict=True)}),
    )  # fmt: skip
    return theirs, port, np.ones((2, 4), np.float32)


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


CONTEXT = {
    "README.md": readme,
    "docs/causes.md": causes,
    "docs/jaxvae.md": jaxvae_page,
    **dict.fromkeys(("docs/options.md", "docs/pytest.md", "docs/taps.md"), comparison),
}
