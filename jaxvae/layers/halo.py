"""The frames before a chunk, where every device of a mesh axis runs a chunk of its own.

Not in diffusers. A causal convolution needs the last frames of its own input in the chunk before.
Where chunks run one after the other that is its cache; where they run side by side, the device
before has them at the same moment.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


@partial(jax.tree_util.register_dataclass, data_fields=["cache"], meta_fields=["axis"])
@dataclass(frozen=True)
class Halo:
    """The input of a convolution in the place of its cache, inside of `jax.shard_map` over `axis`.

    `cache` holds the frames before the first of the chunks that run side by side. Only the first
    device reads it.
    """

    cache: Float[Array, "b past h w c"]
    axis: str

    def exchange(
        self, inputs: Float[Array, "b t h w c"]
    ) -> tuple[Float[Array, "b past h w c"], Float[Array, "b past h w c"]]:
        """Hand the last frames on around the ring; return the frames before `inputs`, and a cache.

        The cache is the one of the next round: the first device gets the last frames of the last
        one. Raises ValueError for fewer frames than a convolution looks back.
        """
        count = self.cache.shape[1]
        if inputs.shape[1] < count:
            raise ValueError(
                f"sharding over time: expected chunks of at least {count} frames at every"
                f" convolution, found one of {inputs.shape[1]}; enlarge"
                " num_sample_frames_batch_size or num_latent_frames_batch_size, or shard no time"
            )
        devices = lax.axis_size(self.axis)
        ring = [(device, (device + 1) % devices) for device in range(devices)]
        received = lax.ppermute(inputs[:, -count:], self.axis, ring)
        first = lax.axis_index(self.axis) == 0
        return jnp.where(first, self.cache, received), received


def prepend(
    inputs: Float[Array, "b t h w c"],
    past: Float[Array, "b past h w c"] | Halo | None,
    count: int,
    *,
    repeat: bool,
) -> tuple[Float[Array, "b t2 h w c"], Float[Array, "b past h w c"]]:
    """Put the `past` frames in front, and return the last `count` of all beside it.

    In a first chunk, which has none, `count` zeros stand there, or the first frame `count` times;
    before fewer frames than `count` zeros do.
    """
    if isinstance(past, Halo):
        past, cache = past.exchange(inputs)
        return jnp.concatenate([past, inputs], axis=1), cache
    if past is None:
        first = jnp.repeat(inputs[:, :1], count, axis=1)
        past = first if repeat else jnp.zeros_like(first)
    missing = max(count - past.shape[1], 0)
    past = jnp.pad(past, ((0, 0), (missing, 0), (0, 0), (0, 0), (0, 0)))
    longer = jnp.concatenate([past, inputs], axis=1)
    # The few frames are taken before what follows reads the many: a TPU's compiler takes them when
    # all else is done, and keeps the input of every convolution until then.
    frames: tuple[Array, Array] = lax.optimization_barrier((longer, longer[:, -count:]))
    return frames
