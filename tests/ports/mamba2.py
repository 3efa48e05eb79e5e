"""A block of Mamba2 of transformers; the port scans over positions, and has a product for each
part of the reference's first.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Block

from tests.ports.loading import give, noise, of, randomise

WIDTH, HEADS, SIZE, STATE = 16, 4, 8, 6
INNER, MIXED = HEADS * SIZE, HEADS * SIZE + 2 * STATE


class Mamba(nnx.Module):
    """Norm, convolution, recurrence, gated norm."""

    def __init__(self, rngs):
        self.ln = nnx.RMSNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.to_gate = nnx.Linear(WIDTH, INNER, use_bias=False, rngs=rngs)
        self.to_mixed = nnx.Linear(WIDTH, MIXED, use_bias=False, rngs=rngs)
        self.to_step = nnx.Linear(WIDTH, HEADS, use_bias=False, rngs=rngs)
        self.filter = nnx.Conv(
            MIXED, MIXED, (4,), padding=((3, 0),), feature_group_count=MIXED, rngs=rngs
        )
        self.step_bias, self.log_decay, self.skip = (nnx.Param(jnp.zeros(HEADS)) for _ in range(3))
        self.gated = nnx.RMSNorm(INNER, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.out = nnx.Linear(INNER, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x):
        u = self.ln(x)
        gate, step = self.to_gate(u), nnx.softplus(self.to_step(u) + self.step_bias[...])
        mixed = nnx.silu(self.filter(self.to_mixed(u)))
        h, b, c = jnp.split(mixed, [INNER, INNER + STATE], -1)
        h = h.reshape(*h.shape[:2], HEADS, SIZE)
        decay = jnp.exp(-jnp.exp(self.log_decay[...]) * step)

        def turn(state, now):
            h, b, c, step, decay = now
            new = jnp.einsum("bhp,bn->bhpn", h * step[..., None], b)
            state = state * decay[..., None, None] + new
            return state, jnp.einsum("bhpn,bn->bhp", state, c)

        start = jnp.zeros((x.shape[0], HEADS, SIZE, STATE))
        along = [jnp.moveaxis(y, 1, 0) for y in (h, b, c, step, decay)]
        y = jnp.moveaxis(jax.lax.scan(turn, start, along)[1], 0, 1)
        y = (y + self.skip[...][:, None] * h).reshape(*x.shape[:2], INNER)
        return x + self.out(self.gated(y * nnx.silu(gate)))


def make():
    """(reference, port, arguments)."""
    config = Mamba2Config(
        hidden_size=WIDTH,
        num_heads=HEADS,
        head_dim=SIZE,
        state_size=STATE,
        n_groups=1,
        expand=2,
        chunk_size=4,
        num_hidden_layers=1,
        layer_norm_epsilon=1e-5,
    )
    ref, port = randomise(Mamba2Block(config, 0)), Mamba(nnx.Rngs(0))
    mixer = ref.mixer
    parts = jnp.split(of(mixer.in_proj.weight).T, [INNER, INNER + MIXED], 1)
    for layer, kernel in zip((port.to_gate, port.to_mixed, port.to_step), parts, strict=True):
        layer.kernel[...] = kernel
    give(port.ln, ref.norm)
    give(port.filter, mixer.conv1d)
    give(port.gated, mixer.norm)
    give(port.out, mixer.out_proj)
    port.step_bias[...] = of(mixer.dt_bias)
    port.log_decay[...] = of(mixer.A_log)
    port.skip[...] = of(mixer.D)
    return ref, port, (noise(2, 10, WIDTH),)
