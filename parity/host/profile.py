"""A profile of a run, as JAX writes it: `*.xplane.pb`, which XProf and TensorBoard show."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def profiled(folder: Path | None) -> Iterator[None]:
    """Write a profile of the block to `folder`; None writes none.

    Python's own calls are left out: of a recorded run they would be most of the file.
    """
    if folder is None:
        yield
        return
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        yield
