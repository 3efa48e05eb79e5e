"""Programs drawn at random, the same in PyTorch and in JAX, a line for each step."""

import linecache
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch

SHAPE = (3, 4, 6)

STEPS = (
    ("{a} * {c}", "{a} * {c}", "{a} * {d}"),
    ("{a} + {c}", "{a} + {c}", "{a} - {c}"),
    ("torch.tanh({a})", "jnp.tanh({a})", "jnp.sin({a})"),
    ("torch.relu({a})", "jax.nn.relu({a})", "jax.nn.elu({a})"),
    ("torch.softmax({a}, -1)", "jax.nn.softmax({a}, -1)", "jax.nn.softmax({a}, 1)"),
    ("{a} - {a}.mean(-1, keepdim=True)", "{a} - {a}.mean(-1, keepdims=True)", "{a} - {a}.mean()"),
    ("{a} @ w", "{a} @ w", "{a} @ w.T"),
    ("torch.cumsum({a}, 1)", "jnp.cumsum({a}, 1)", "jnp.cumsum({a}, 2)"),
    ("{a} + {b}", "{a} + {b}", "{a} + 2 * {b}"),
    ("{a} * torch.sigmoid({b})", "{a} * jax.nn.sigmoid({b})", "{b} * jax.nn.sigmoid({a})"),
    ("torch.cat([{a}[..., 3:], {b}[..., :3]], -1)",
     "jnp.concatenate([{a}[..., 3:], {b}[..., :3]], -1)",
     "jnp.concatenate([{a}[..., :3], {b}[..., :3]], -1)"),
    ("{a}.transpose(0, 1).reshape({a}.shape)", "{a}.swapaxes(0, 1).reshape({a}.shape)",
     "{a}.swapaxes(1, 2).reshape({a}.shape)"),
)  # fmt: skip
"""Each in PyTorch, in JAX, and wrong."""


@dataclass(frozen=True)
class Drawn:
    """The source of both, and the line of the port that is wrong, 0 if none is."""

    torch: str
    jax: str
    wrong: int


def draw(seed, mistake, length=10):
    """A program whose last line uses all that was made, with one wrong line if asked for."""
    rng = np.random.default_rng(seed)
    names, ref, port = ["x"], ["def program(x, w):"], ["def program(x, w):"]
    at = int(rng.integers(length)) if mistake else -1
    for step in range(length):
        own, its, wrong = STEPS[rng.integers(len(STEPS))]
        a, b = names[-1], names[int(rng.integers(len(names)))]
        c = round(float(rng.uniform(0.4, 1.8)), 3)
        with_names = {"a": a, "b": b, "c": c, "d": c + 0.3}
        ref.append(f"    v{step} = {own.format(**with_names)}")
        port.append(f"    v{step} = {(wrong if step == at else its).format(**with_names)}")
        names.append(f"v{step}")
    for lines in (ref, port):
        lines.append(f"    return {names[-1]}")
    return Drawn("\n".join(ref), "\n".join(port), at + 2 if mistake else 0)


def function(source, name):
    """The function of a source, which tools for reading lines find under a name."""
    linecache.cache[name] = (len(source), None, [f"{line}\n" for line in source.split("\n")], name)
    names = {"torch": torch, "jax": jax, "jnp": jnp}
    exec(compile(source, name, "exec"), names)
    return names["program"]


class Reference(torch.nn.Module):
    def __init__(self, program, weight):
        super().__init__()
        self.program, self.weight = program, torch.nn.Parameter(torch.from_numpy(weight))

    def forward(self, x):
        return self.program(x, self.weight)


def programs(drawn, folder):
    """Reference, port and input."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((6, 6)).astype(np.float32)
    x = rng.standard_normal(SHAPE).astype(np.float32)
    own = Reference(function(drawn.torch, str(folder / "reference.py")), weight)
    port = function(drawn.jax, str(folder / "port.py"))
    return own, lambda x: port(x, jnp.asarray(weight)), x
