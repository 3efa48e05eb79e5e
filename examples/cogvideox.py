"""Encode a video with the CogVideoX VAE and decode it again, whole, in tiles, and as a stream.

    python examples/cogvideox.py                                  # a small model, random weights
    python examples/cogvideox.py --weights path/to/vae --video clip.mp4 --size 480
    python examples/cogvideox.py --weights path/to/vae --size 768 --tile 256

Prints the sizes of what comes out and how far it is from what went in. docs/jaxvae.md explains the
calls.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxvae
from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK
from jaxvae.pairs.inputs import load_clip

SMALL = jaxvae.CogVideoXVAEConfig(
    down_block_types=(DOWN_BLOCK,) * 3,
    up_block_types=(UP_BLOCK,) * 3,
    block_out_channels=(4, 4, 4),
    latent_channels=2,
    layers_per_block=1,
    norm_num_groups=2,
)


OVERLAP = 0.25  # of a tile: whole in latents if a tile is a multiple of four latents


def load(weights):
    """The model: a folder of diffusers or a repository of the Hub, else small and random."""
    if weights is None:
        vae = jaxvae.AutoencoderKLCogVideoX(SMALL, rngs=nnx.Rngs(0))
        vae.eval()
        return vae
    path, _, subfolder = weights.partition(":")
    return jaxvae.AutoencoderKLCogVideoX.from_pretrained(path, subfolder or None)


def streamed(vae, latent):
    """Return what `decode` returns, joined from chunks; memory holds one of them at a time."""
    return np.concatenate([np.asarray(frames) for frames in vae.decode_stream(latent)], axis=1)


def main(arguments=None):
    """Encode, decode, print, and return the video that comes back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="a folder, or owner/name:vae; small and random without")
    parser.add_argument("--video", help="a video or an .npy array; the sample clip without")
    parser.add_argument("--frames", type=int, default=9, help="8 n + 1")
    parser.add_argument("--size", type=int, default=16, help="height and width in pixels")
    parser.add_argument("--tile", type=int, help="height and width of tiles in pixels")
    options = parser.parse_args(arguments)

    if options.frames < 1 or options.frames % 8 != 1:
        parser.error("--frames: expected 8 n + 1; of others not as many come back")
    try:
        vae = load(options.weights)
        step = vae.config.spatial_ratio  # pixels of one latent
        if options.size < step or options.size % step:
            parser.error(f"--size: expected a multiple of {step}; others do not come back whole")
        if options.tile is not None and (options.tile < 1 or options.tile % (4 * step)):
            parser.error(f"--tile: expected a multiple of {4 * step}, or tiles overlap unevenly")
        clip = load_clip(options.video, options.frames, (options.size, options.size), 0)
    except ValueError as error:  # weights or a video that cannot be used: it says why
        parser.error(str(error))
    video = jnp.asarray(np.moveaxis(clip.frames, 1, -1))  # (1, frames, height, width, 3), [-1, 1]
    if options.tile:
        vae.enable_tiling(options.tile, options.tile, OVERLAP, OVERLAP)
    posterior = vae.encode(video)
    latent = posterior.mode()  # or posterior.sample(jax.random.key(0))
    print(f"video {video.shape} to latent {latent.shape}")

    back = jnp.clip(vae.decode(latent), -1, 1)  # decode itself does not clip
    print(
        f"and back {back.shape}: mean error {jnp.abs(back - video[:, : back.shape[1]]).mean():.3f}"
    )
    same = np.array_equal(np.clip(streamed(vae, latent), -1, 1), back)
    print(f"as a stream: {'the same, bit for bit' if same else 'other values'}")

    scaled = jaxvae.scale_latents(latent, vae.config)  # what a diffusion model works on
    again = jaxvae.unscale_latents(scaled, vae.config)
    print(f"scaled by {vae.config.scaling_factor} and back: {jnp.abs(again - latent).max():.1e}")
    print(f"on {len(jax.devices())} {jax.default_backend()} device(s)")
    return back


if __name__ == "__main__":
    main()
