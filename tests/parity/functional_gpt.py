"""A small GPT in PyTorch, and its port as a function over nested parameters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

import parity

WIDTH, HEADS, WORDS, LENGTH, LAYERS = 8, 2, 11, 6, 2
IDS = np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
AHEAD = np.triu(np.ones((LENGTH, LENGTH), bool), 1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(
            torch.from_numpy(AHEAD), -torch.inf
        )
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.act = torch.nn.GELU(approximate="tanh")
        self.out = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.out(self.act(self.fc(x)))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T


def make_reference():
    torch.manual_seed(0)
    reference = Gpt().eval()
    with torch.no_grad():
        for name, value in reference.named_parameters():
            if "norm" in name:
                value.normal_().mul_(0.3).add_(float("weight" in name))
    return reference


def make_params(reference):
    """Nested dicts, with a list for the layers; kernels are (in, out)."""
    params = {}
    for name, value in reference.named_parameters():
        *path, own = name.split(".")
        linear = isinstance(reference.get_submodule(".".join(path)), torch.nn.Linear)
        array = jnp.asarray(value.detach().numpy())
        held = params
        for key in path:
            held = held.setdefault(key, {})
        held["kernel" if linear and own == "weight" else own] = (
            array.T if linear and array.ndim > 1 else array
        )
    return {**params, "layers": [params["layers"][str(i)] for i in range(LAYERS)]}


def norm(p, x, epsilon=1e-5):
    x = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + epsilon)
    return x * scale * p["weight"][None, None] + p["bias"][None, None]


def linear(p, x):
    return x @ p["kernel"] + p["bias"][None, None]


def attention(p, x):
    q, k, v = jnp.moveaxis(
        linear(p["qkv"], x).reshape(*x.shape[:2], 3, HEADS, -1), (2, 3), (0, 2)
    )  # fmt: skip
    scores = q @ jnp.swapaxes(k, 2, 3) / math.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(AHEAD[None, None], -jnp.inf, scores))
    return linear(p["out"], jnp.swapaxes(weights @ v, 1, 2).reshape(x.shape))


def mlp(p, x, approximate=True):
    return linear(p["out"], jax.nn.gelu(linear(p["fc"], x), approximate=approximate))


def layer(p, x, tap, epsilon=1e-5, approximate=True):
    x = x + tap("attn", attention(p["attn"], tap("norm1", norm(p["norm1"], x, epsilon))))
    return x + tap("mlp", mlp(p["mlp"], tap("norm2", norm(p["norm2"], x)), approximate))


def gpt(params, ids, *, wrong=None, inside=True, around=True, wrapped=lambda function: function):
    """`wrong` are the settings of a layer by its number; `inside` and `around` ask for taps."""
    x = params["words"]["weight"][ids]
    for i, p in enumerate(params["layers"]):

        def tap(name, y, i=i):
            return parity.tap(f"layers.{i}.{name}", y) if inside else y

        def run(p, x, i=i, tap=tap):
            return layer(p, x, tap, **(wrong or {}).get(i, {}))

        x = wrapped(run)(p, x)
        x = parity.tap(f"layers.{i}", x) if around else x
    x = norm(params["norm"], x)
    x = parity.tap("norm", x) if around else x
    return x @ params["words"]["weight"].T


def make_pair():
    """What `parity compare` takes."""
    reference = make_reference()
    port = parity.Functional(gpt, make_params(reference))
    return {
        "torch_module": reference,
        "nnx_module": port,
        "torch_args": (IDS,),
        "check_compiled": False,
    }
