"""Videos that come, or go, chunk by chunk: memory does not grow with the number of frames.

Not in diffusers. What streams is computed by the programs of the one-shot calls.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from jax import lax

from jaxvae.layers.convolution import Cache
from jaxvae.run.chunks import Bounds
from jaxvae.run.steps import Coder, Output, Video, cut
from jaxvae.run.tiling import Window, Windows, join


def run_stream(
    chunks: Iterable[tuple[Coder, Video]], windows_of: Callable[[tuple[int, ...]], Windows]
) -> Iterator[Output]:
    """Yield the output of each chunk; the caches of every window wait for the next chunk.

    `windows_of` is asked once, with the shape of the first chunk: who switches tiling later does so
    for later calls.
    """
    caches: dict[Window, Cache] = {}
    windows: Windows | None = None
    for coder, chunk in chunks:
        windows = windows or windows_of(chunk.shape)

        def run(window: Window, coder: Coder = coder, chunk: Video = chunk) -> Output:
            frames = cut(chunk, (0, chunk.shape[1]), window)
            output, caches[window] = coder(frames, caches.pop(window, None))
            return output

        yield windows.join(run)


def regroup(
    arrays: Iterable[Video], bounds: list[Bounds], total: int | None = None
) -> Iterator[Video]:
    """Yield the same frames in chunks of the lengths that `bounds` has; what is beyond is left out.

    Raises ValueError where an array has another batch, height, width or channels than the first,
    and, before the last chunk, where there are fewer or more frames than `total`.
    """
    last = bounds[-1][1]
    total = total or last
    source = _alike(arrays)
    waiting: deque[Video] = deque()
    seen, gone = 0, 0  # frames, and those of the first of `waiting` that are in a chunk already
    for start, end in bounds:
        # The last chunk waits for the end of the source, so that frames too many are an error.
        while seen < end or (end == last and seen <= total):
            array = next(source, None)
            if array is None:
                break
            waiting.append(array)
            seen += array.shape[1]
        if seen < (total if end == last else end) or seen > total:
            raise ValueError(
                f"encode_stream: expected {total} frames in all, found"
                f" {'at least ' if seen > total else ''}{seen}; give their number as `total`, since"
                " it decides how long the first chunk is"
            )
        parts, missing = [], end - start
        while missing:
            count = min(missing, waiting[0].shape[1] - gone)
            whole = count == waiting[0].shape[1]
            # where a dynamic slice starts is no part of a program: they all share one
            part = waiting[0] if whole else lax.dynamic_slice_in_dim(waiting[0], gone, count, 1)
            parts.append(part)
            missing, gone = missing - count, gone + count
            if gone == waiting[0].shape[1]:
                waiting.popleft()
                gone = 0
        yield join(parts, axis=1)


def _alike(arrays: Iterable[Video]) -> Iterator[Video]:
    expected = None
    for array in arrays:
        found = (array.shape[0], *array.shape[2:])
        expected = expected or found
        if found != expected:
            raise ValueError(
                "encode_stream: expected arrays alike in all but the number of frames, found"
                f" (batch, height, width, channels) {expected} and then {found}"
            )
        yield array
