"""Switches for slicing, tiling and sharding, and the parts of a video that follow from them.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`.
"""

from flax import nnx
from jax.sharding import Mesh

from jaxvae.devices.sharding import Layout, withdraw
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.run.tiling import Windows, one_tile, plan_axis


class Switches(nnx.Module):
    """The switches of an autoencoder, under diffusers' names, and what follows from them.

    They are plain attributes, and all but `sharding` may be set by hand too. No program depends on
    them, only on the sizes of the windows that go through it, and on `sharding`.
    """

    def __init__(self, config: CogVideoXVAEConfig):
        """Start with everything off."""
        self.config = config
        self.use_slicing = False
        self.use_tiling = False
        self.tile_sample_min_height = config.sample_height // 2
        self.tile_sample_min_width = config.sample_width // 2
        self.tile_latent_min_height = int(self.tile_sample_min_height / self.config.spatial_ratio)
        self.tile_latent_min_width = int(self.tile_sample_min_width / self.config.spatial_ratio)
        self.tile_overlap_factor_height = 1 / 6
        self.tile_overlap_factor_width = 1 / 5
        self.sharding: Layout | None = None

    def enable_slicing(self) -> None:
        """From now on run the samples of a batch one at a time: less memory, the same numbers.

        Each sample is computed as if it came alone, bit for bit. Slices are cut before tiles.
        """
        self.use_slicing = True

    def disable_slicing(self) -> None:
        """Run the samples of a batch together again."""
        self.use_slicing = False

    def enable_tiling(
        self,
        tile_sample_min_height: int | None = None,
        tile_sample_min_width: int | None = None,
        tile_overlap_factor_height: float | None = None,
        tile_overlap_factor_width: float | None = None,
    ) -> None:
        """From now on cut videos that are higher or wider than a tile into overlapping tiles.

        Sizes are in pixels, overlaps are parts of a tile. At first a tile is half of the config's
        `sample_height` and `sample_width`, and overlaps are 1/6 and 1/5. Tiles are another
        function, not only another memory use: each has group statistics and caches of its own. A
        tile ought to be a multiple of the model's spatial ratio (8), and both overlaps whole in
        pixels and in latents; see `tiling.plan_axis` for what comes out otherwise.

        Quirk of the source, kept: whatever is None or 0 stays as it is, also as an earlier call
        has set it.
        """
        self.use_tiling = True
        self.tile_sample_min_height = tile_sample_min_height or self.tile_sample_min_height
        self.tile_sample_min_width = tile_sample_min_width or self.tile_sample_min_width
        self.tile_latent_min_height = int(self.tile_sample_min_height / self.config.spatial_ratio)
        self.tile_latent_min_width = int(self.tile_sample_min_width / self.config.spatial_ratio)
        self.tile_overlap_factor_height = (
            tile_overlap_factor_height or self.tile_overlap_factor_height
        )
        self.tile_overlap_factor_width = tile_overlap_factor_width or self.tile_overlap_factor_width

    def disable_tiling(self) -> None:
        """Run videos of any size whole again. The sizes of tiles stay for the next time."""
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
        sizes = (self.tile_sample_min_height, self.tile_sample_min_width)
        outputs = (self.tile_latent_min_height, self.tile_latent_min_width)
        windows = self._windows(shape, sizes, outputs, self.config.spatial_ratio)
        if self.sharding is not None:
            last = len(self.config.block_out_channels) - 1
            names = ["the video", *(f"down_blocks.{i}'s output" for i in range(last))]
            names[-1] += ", the latent" if last else ""
            levels = {name: (shape[2] >> i, shape[3] >> i) for i, name in enumerate(names)}
            self.sharding.check(shape[0], levels, windows)
        return windows

    def latent_windows(self, shape: tuple[int, ...]) -> Windows:
        """Return what of a latent (b, t, h, w, c) goes through the decoder by itself."""
        sizes = (self.tile_latent_min_height, self.tile_latent_min_width)
        outputs = (self.tile_sample_min_height, self.tile_sample_min_width)
        windows = self._windows(shape, sizes, outputs, 1)
        if self.sharding is not None:
            # Each level of the decoder is twice the one before: who divides this divides all.
            self.sharding.check(shape[0], {"the latent": (shape[2], shape[3])}, windows)
        return windows

    def _windows(
        self,
        shape: tuple[int, ...],
        tile: tuple[int, int],
        output_tile: tuple[int, int],
        smallest: int,
    ) -> Windows:
        batch, _, height, width, _ = shape
        slices = self.use_slicing and batch > 1
        samples = tuple((i, i + 1) for i in range(batch)) if slices else ((0, batch),)
        if not self.use_tiling or (height <= tile[0] and width <= tile[1]):
            return Windows(samples, one_tile(height), one_tile(width))
        factors = (self.tile_overlap_factor_height, self.tile_overlap_factor_width)
        rows, columns = (
            plan_axis(*plan, smallest)
            for plan in zip(
                ("height", "width"), (height, width), tile, output_tile, factors, strict=True
            )
        )
        return Windows(samples, rows, columns)
