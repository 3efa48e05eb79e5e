"""Bounds of the chunks of frames that go through a model together. Pure Python, no arrays.

Source: diffusers 0.42.1, `_encode` and `_decode` of `AutoencoderKLCogVideoX` and
`AutoencoderKLWan`.
"""

Bounds = tuple[int, int]
"""Where something starts, and where it ends: the end is not part of it."""


def chunk_bounds(frames: int, size: int) -> list[Bounds]:
    """Split `frames` into (start, end) chunks of `size`; the remainder joins the FIRST chunk.

    49 frames by 8 are 9 + 8 + 8 + 8 + 8 + 8, and 13 latent frames by 2 are 3 + 2 + 2 + 2 + 2 + 2.
    Fewer frames than `size` are one chunk. Group statistics are taken over a chunk and a chunk of
    one frame is upsampled in space only, so another split is another function.
    """
    if frames < 1 or size < 1:
        raise ValueError(
            f"chunks: expected at least 1 frame and a chunk size of at least 1,"
            f" found {frames} frames and size {size}"
        )
    if frames < size:
        return [(0, frames)]
    first = size + frames % size
    return [(0, first), *((start, start + size) for start in range(first, frames, size))]


def first_alone(frames: int, size: int) -> list[Bounds]:
    """Split `frames` into the first one and (start, end) chunks of `size`; a remainder is left out.

    49 frames by 4 are 1 + 12 * 4, and so are 50: where all is causal in time, a chunk that is not
    full would be another function.
    """
    if frames < 1 or size < 1:
        raise ValueError(
            f"chunks: expected at least 1 frame and a chunk size of at least 1,"
            f" found {frames} frames and size {size}"
        )
    return [(0, 1), *((end - size, end) for end in range(1 + size, frames + 1, size))]
