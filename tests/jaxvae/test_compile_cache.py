"""Compiled programs are kept between processes, where the user has said nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import jax
import pytest

from jaxvae.devices import compile_cache

RUN = """
import json
import sys
from collections import Counter
import jax
import numpy as np
from jax import monitoring
from jaxvae import AutoencoderKLCogVideoX

events = Counter()
monitoring.register_event_listener(lambda event, **_: events.update([event]))
vae = AutoencoderKLCogVideoX.from_pretrained(sys.argv[1])
before = jax.config.jax_compilation_cache_dir
events.clear()
latent = np.ones((1, 1, 2, 2, 2), np.float32)
for _ in range(2):
    np.asarray(vae.decode(latent))
print(json.dumps({
    "before": before,
    "folder": jax.config.jax_compilation_cache_dir,
    "hits": events["/jax/compilation_cache/cache_hits"],
    "misses": events["/jax/compilation_cache/cache_misses"],
}))
"""


def test_a_second_process_compiles_nothing(objective, tmp_path):
    objective.ours.save_pretrained(tmp_path / "vae")
    variables = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    variables |= {
        "XDG_CACHE_HOME": str(tmp_path / "caches"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    found = []
    for _ in range(2):
        words = [sys.executable, "-W", "error", "-c", RUN, tmp_path / "vae"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout))
    folder = tmp_path / "caches" / "jaxvae"
    compiled = found[0]["misses"]
    assert compiled > 0
    assert found[0] == {"before": None, "folder": str(folder), "hits": 0, "misses": compiled}
    assert found[1] == found[0] | {"hits": compiled, "misses": 0}
    assert oct(folder.stat().st_mode)[-3:] == "700"


@pytest.fixture
def undecided(monkeypatch, tmp_path):
    """As in a new process in which nobody has said anything."""
    names = ("compilation_cache_dir", "compilation_cache_max_size", "enable_compilation_cache")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(compile_cache, "_decided", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv(compile_cache.VARIABLE, raising=False)
    yield monkeypatch
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_folder_that_cannot_be_written(undecided, tmp_path):
    (tmp_path / "file").touch()
    undecided.setenv(compile_cache.VARIABLE, str(tmp_path / "file" / "x"))
    with pytest.warns(UserWarning, match="compiled programs are not kept, expected a fol") as said:
        compile_cache.use_default_cache()
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    compile_cache.use_default_cache()  # not said again
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_compilation_cache_dir", "own"),
        ("jax_compilation_cache_dir", ""),
        ("jax_enable_compilation_cache", False),
        (compile_cache.VARIABLE, ""),
    ],
)
def test_what_the_user_said_stays(undecided, tmp_path, name, value):
    if name == compile_cache.VARIABLE:
        undecided.setenv(name, value)
    else:
        jax.config.update(name, value)
    folder = jax.config.jax_compilation_cache_dir
    compile_cache.use_default_cache()
    assert jax.config.jax_compilation_cache_dir == folder
    assert not (tmp_path / "caches").exists()


def test_a_folder_that_others_may_write_to(undecided, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    undecided.setenv(compile_cache.VARIABLE, str(folder))
    with pytest.warns(UserWarning, match="has mode 777 .* others may put code there"):
        compile_cache.use_default_cache()
    assert jax.config.jax_compilation_cache_dir is None


def test_half_an_entry_does_not_stay(undecided, tmp_path):
    """As a process leaves it that is killed between JAX's two writes."""
    folder = tmp_path / "caches" / "jaxvae"
    folder.mkdir(parents=True, mode=0o700)
    for name in ("whole-cache", "whole-atime", "half-cache"):
        (folder / name).write_bytes(bytes(8))
    with filelock.FileLock(folder / ".lockfile"):
        compile_cache.use_default_cache()  # another process may be writing it just now
    assert (folder / "half-cache").exists()
    undecided.setattr(compile_cache, "_decided", False)
    jax.config.update("jax_compilation_cache_dir", None)
    compile_cache.use_default_cache()
    assert {file.name for file in folder.glob("*-*")} == {"whole-cache", "whole-atime"}


def test_entries_of_a_folder_without_a_limit_stay(undecided, tmp_path):
    folder = tmp_path / "caches" / "jaxvae"
    folder.mkdir(parents=True, mode=0o700)
    for name in ("one", "two"):
        (folder / f"{name}-cache").write_bytes(bytes(8))
    compile_cache.use_default_cache()
    names = {f"{name}-{kind}" for name in ("one", "two") for kind in ("cache", "atime")}
    assert {file.name for file in folder.glob("*-*")} == names
    used = int.from_bytes((folder / "one-atime").read_bytes(), "little")
    assert used == (folder / "one-cache").stat().st_mtime_ns


@pytest.mark.parametrize("limit", [-1, 1000])
def test_the_folder_has_a_limit(undecided, tmp_path, limit):
    jax.config.update("jax_compilation_cache_max_size", limit)
    compile_cache.use_default_cache()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "caches" / "jaxvae")
    assert jax.config.jax_compilation_cache_max_size == (
        limit if limit > 0 else compile_cache.LARGEST
    )


def test_folders(monkeypatch):
    for name, value, folder in (
        ("XDG_CACHE_HOME", "not/absolute", Path.home() / ".cache" / "jaxvae"),
        ("XDG_CACHE_HOME", "/caches", Path("/caches/jaxvae")),
        (compile_cache.VARIABLE, "/mine", Path("/mine")),
        (compile_cache.VARIABLE, "~/mine", Path.home() / "mine"),
        (compile_cache.VARIABLE, "", None),
    ):
        monkeypatch.setenv(name, value)
        assert compile_cache.default_folder() == folder
