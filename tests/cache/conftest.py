"""A cache of its own for every test, and a small reference with what the key has to see."""

import pytest
import torch

from parity.cache import folder
from parity.capture import torch as capture_torch
from parity.force import module64 as wide
from parity.force import torch as force_torch


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of the cache."""
    path = tmp_path / "kept"
    monkeypatch.setenv(folder.VARIABLE, str(path))
    monkeypatch.delenv(folder.LIMIT, raising=False)
    return path


@pytest.fixture
def runs(monkeypatch):
    """Counts how often something is called on a module of the reference."""
    counted = []
    invoke = capture_torch.invoke

    def counting(module, *args):
        counted.append(type(module).__name__)
        return invoke(module, *args)

    for home in (capture_torch, force_torch, wide):
        monkeypatch.setattr(home, "invoke", counting)
    return counted


@pytest.fixture
def entries(cache):
    """The packs that are kept, by the name of their entry."""

    def found():
        return {entry.name: sorted(pack.name for pack in entry.iterdir())
                for entry in cache.iterdir()}  # fmt: skip

    return found


@pytest.fixture(autouse=True)
def streams():
    """What a test draws from torch's own stream is put back."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
