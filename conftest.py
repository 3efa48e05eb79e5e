"""Settings and small models that all tests share."""

import gc
import os
import tempfile

# Before JAX is imported: commands that tests run use what is compiled already.
COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", COMPILED.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Compiling takes most of the time: with little optimisation less of it. Whoever sets the flags,
# if only to nothing as `make test-slow` does, gets programs as they are shipped.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false",
)

# There is a process for each core: more threads than cores would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What JAX keeps are many objects that live: to look through them takes time.
gc.set_threshold(50_000, 20, 50)

import jax  # noqa: E402
import pytest  # noqa: E402

from parity.host.memory import give_back, resident_memory  # noqa: E402

pytest_plugins = ["pytester"]  # runs pytest in tests of the plugin

# A port that broadcasts by accident is wrong at the first other batch size.
jax.config.update("jax_numpy_rank_promotion", "raise")


MEMORY, MORE = 4 << 30, 1 << 30
"""Bytes from which on a process of the tests forgets what it has compiled, and how many more it has
to take before it does so again: not all of them come back."""

held = {"after": 0}
"""Bytes that were left the last time."""


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Keep a process of the tests small: JAX keeps every program that it compiles."""
    yield
    if resident_memory() > max(MEMORY, held["after"] + MORE):
        jax.clear_caches()
        give_back()
        held["after"] = resident_memory()


@pytest.fixture(scope="session")
def small_torch():
    """diffusers' model in the small configuration of the ladder."""
    from jaxvae.pairs.cogvideox.reference import make_torch

    return make_torch(None, "small", 0)


@pytest.fixture(scope="session")
def small_nnx(small_torch):
    """The port with the same weights."""
    from jaxvae.pairs.cogvideox.pair import PAIR

    return PAIR.make_nnx({"weights": None, "config": "small"}, small_torch)
