"""Train a small CogVideoX VAE for a few steps on a video: reconstruction and KL, with optax.

    python examples/train.py                          # the sample clip, or moving textures
    python examples/train.py --steps 100 --video clip.mp4 --checkpointing

Prints the loss of every step. With `--out` the trained posterior's mode is decoded and saved as an
.npy array (frames, height, width, 3) in [-1, 1].
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxvae
from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK
from jaxvae.pairs.inputs import load_clip

CONFIG = jaxvae.CogVideoXVAEConfig(
    down_block_types=(DOWN_BLOCK,) * 2,
    up_block_types=(UP_BLOCK,) * 2,
    block_out_channels=(4, 8),
    latent_channels=2,
    layers_per_block=1,
    norm_num_groups=2,
    temporal_compression_ratio=2,
)
KL_WEIGHT = 1e-6


def loss(vae, video, key):
    """Mean squared error of a sampled reconstruction, and the divergence from N(0, 1)."""
    posterior = vae.encode(video)
    reconstruction = vae.decode(posterior.sample(key))
    return jnp.mean(jnp.square(reconstruction - video)) + KL_WEIGHT * jnp.mean(posterior.kl())


def make_step(optimiser):
    """Return one compiled step: the model, the optimiser's state and the loss after it.

    The model is a pytree, and so are its gradients; the memory of both is used again.
    """

    @jax.jit(donate_argnums=(0, 1))
    def step(vae, state, video, key):
        value, gradients = jax.value_and_grad(loss)(vae, video, key)
        updates, state = optimiser.update(gradients, state, vae)
        return optax.apply_updates(vae, updates), state, value

    return step


def main(arguments=None):
    """Train, print, and return the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--video", help="a video or an .npy array; the sample clip without")
    parser.add_argument("--frames", type=int, default=9)
    parser.add_argument("--size", type=int, default=16, help="height and width in pixels")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true", help="less memory, more time")
    parser.add_argument("--out", type=Path, help="save the reconstruction here (.npy)")
    options = parser.parse_args(arguments)

    even = options.size >= 4 and options.size % 2 == 0
    if not even or options.frames < 1 or options.frames % 4 > 1:  # others come back as 5 for 6
        parser.error("--size must be even and at least 4, --frames a multiple of 4, or one more")
    if options.steps < 1:
        parser.error("--steps: expected at least 1")
    if options.out and not options.out.parent.is_dir():
        parser.error(f"--out: no folder {options.out.parent}; make it first")
    try:
        clip = load_clip(options.video, options.frames, (options.size, options.size), options.seed)
    except ValueError as error:  # a video that cannot be used: it says why
        parser.error(str(error))
    video = jnp.asarray(np.moveaxis(clip.frames, 1, -1))
    vae = jaxvae.AutoencoderKLCogVideoX(CONFIG, rngs=nnx.Rngs(options.seed))
    if options.checkpointing:
        vae.enable_gradient_checkpointing()
    optimiser = optax.adam(options.rate)
    state = optimiser.init(vae)
    step = make_step(optimiser)
    losses = []
    for number, key in enumerate(jax.random.split(jax.random.key(options.seed), options.steps)):
        vae, state, value = step(vae, state, video, key)
        losses.append(float(value))
        print(f"step {number + 1}: loss {losses[-1]:.4f}", flush=True)
    if options.out:
        np.save(options.out, np.asarray(vae(video))[0])
    return losses


if __name__ == "__main__":
    main()
