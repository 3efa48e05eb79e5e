"""Switches for slicing, tiling and sharding, and the parts of an input that follow from them.

Source: diffusers 0.42.1, `AutoencoderMixin`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from flax import nnx
from jax.sharding import Mesh

from jaxvae.devices.sharding import Layout, withdraw
from jaxvae.run.tiling import Axis, Windows, one_tile

Direction = Literal["encode", "decode"]
Sides = tuple[float, float]
"""A number for the height and one for the width."""


class Switches(nnx.Module):
    """The switches of an autoencoder, under diffusers' names, and what follows from them.

    They are plain attributes, and all but `sharding` may be set by hand too. No program depends on
    them, only on the sizes of the windows that go through it, and on `sharding`. How tiles lie is a
    model's own: `plan_tiles`, `tile_plan` and `set_tiles`.
    """

    config: Any
    axes: ClassVar[tuple[str, ...]]

    def __init__(self, config: Any):
        """Start with everything off."""
        self.config = config
        self.use_slicing = False
        self.use_tiling = False
        self.sharding: Layout | None = None
        self.reset_tiles()

    def enable_slicing(self) -> None:
        """From now on run the samples of a batch one at a time: less memory, the same numbers.

        Each sample is computed as if it came alone, bit for bit. Slices are cut before tiles.
        """
        self.use_slicing = True

    def disable_slicing(self) -> None:
        """Run the samples of a batch together again."""
        self.use_slicing = False

    def disable_tiling(self) -> None:
        """Run inputs of any size whole again. The sizes of tiles stay for the next time."""
        self.use_tiling = False

    def enable_sharding(
        self,
        mesh: Mesh,
        *,
        batch: str | None = None,
        height: str | None = None,
        width: str | None = None,
        time: str | None = None,
        tiles: str | None = None,
    ) -> None:
        """From now on run over the devices of `mesh`; each argument names one of its axes.

        Not in diffusers. The parameters are copied to every device now: load others before.
        `height` and `width` must divide the sizes of all levels, from the video to the latent.
        `time` runs the chunks after the first side by side, one on each device, so that more
        devices than chunks are of no use; a chunk must keep two frames at every level. `tiles` does
        so with tiles of one size. What is returned is split along batch, height and width. With
        `time` the chunks of a stream come as many at a time as run together, and are split along
        time too; with `tiles` there are no streams.

        On a mesh of several processes all of them make the same calls, with global arrays or the
        same NumPy arrays. Raises ValueError for names that are not the mesh's, for explicit and
        manual axes, and, when it runs, for what does not split evenly: see `Layout.check`.
        """
        if time is not None and "frames" not in self.axes:
            raise ValueError(
                "sharding: time is of videos, and this model codes images; shard batch"
            )
        layout = Layout(mesh, batch, height, width, time, tiles)
        layout.replicate(self)
        self.sharding = layout

    def disable_sharding(self) -> None:
        """Run on one device again; one copy of the parameters stays."""
        if self.sharding is not None:
            withdraw(self)
        self.sharding = None

    def sample_windows(self, shape: tuple[int, ...]) -> Windows:
        """Return what of a video (b, t, h, w, c) goes through the encoder by itself."""
        return self._windows("encode", shape)

    def latent_windows(self, shape: tuple[int, ...]) -> Windows:
        """Return what of a latent (b, t, h, w, c) goes through the decoder by itself."""
        return self._windows("decode", shape)

    def plan_tiles(self, direction: Direction, size: tuple[int, int]) -> tuple[Axis, Axis] | None:
        """Return the tiles along height and width of an input of this size, None if it is one."""
        raise NotImplementedError

    def reset_tiles(self) -> None:
        """Set the sizes of tiles to those that the model starts with."""
        raise NotImplementedError

    def tile_plan(self) -> tuple[tuple[int, int], Sides]:
        """Return the sizes of a tile in pixels, and the parts of it that the next one overlaps."""
        raise NotImplementedError

    def set_tiles(self, sizes: tuple[int, int], overlaps: Sides) -> None:
        """Switch tiling on, with what `tile_plan` returns then."""
        raise NotImplementedError

    def levels(self, direction: Direction, size: tuple[int, int]) -> Mapping[str, tuple[int, int]]:
        """Return height and width by the name of what has them: all that sharding must divide."""
        if direction == "decode":
            # Each level of the decoder is twice the one before: who divides this divides all.
            return {"the latent": size}
        last = len(self.config.block_out_channels) - 1
        names = ["the video", *(f"down_blocks.{i}'s output" for i in range(last))]
        names[-1] += ", the latent" if last else ""
        return {name: (size[0] >> i, size[1] >> i) for i, name in enumerate(names)}

    def _windows(self, direction: Direction, shape: tuple[int, ...]) -> Windows:
        batch, _, height, width, _ = shape
        slices = self.use_slicing and batch > 1
        samples = tuple((i, i + 1) for i in range(batch)) if slices else ((0, batch),)
        planned = self.plan_tiles(direction, (height, width)) if self.use_tiling else None
        rows, columns = planned or (one_tile(height), one_tile(width))
        windows = Windows(samples, rows, columns)
        if self.sharding is not None:
            self.sharding.check(batch, self.levels(direction, (height, width)), windows)
        return windows
