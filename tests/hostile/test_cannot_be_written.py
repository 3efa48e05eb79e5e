"""Disks that are full or read-only, and interrupts: one line, and nothing is left or replaced."""

import errno
import subprocess
import time
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from jaxvae import AutoencoderKLCogVideoX, WeightsError, save_checkpoint
from jaxvae.cli.files import write_bytes
from jaxvae.io.video import VideoError, Writer
from tests.commands import here


@pytest.fixture
def disk(tmp_path):
    """A disk of a few kilobytes, with one file."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    (place / "kept.mp4").write_bytes(b"kept")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def read_only(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def full(disk):
    with pytest.raises(OSError, match="No space"):
        (disk / "rest").write_bytes(bytes(1 << 20))


COMMANDS = [
    ("encode", "clip.npy", "disk/l.safetensors"),
    ("reconstruct", "clip.npy", "disk/o.npy"),
    ("reconstruct", "clip.npy", "disk/o.png", "--frames", "1"),
    ("reconstruct", "clip.npy", "disk/kept.mp4"),
    ("reconstruct", "clip.npy", "beside.mp4", "--compare", "disk/o.png"),
]


@pytest.mark.parametrize("spoil", [read_only, full])
@pytest.mark.parametrize("words", [pytest.param(x, id=f"{x[0]} {x[-1]}") for x in COMMANDS])
def test_a_command(good, disk, tmp_path, monkeypatch, spoil, words):
    monkeypatch.chdir(tmp_path)
    spoil(disk)
    before = sorted(disk.iterdir())
    clip = str(good / words[1])
    done = here("jaxvae", words[0], clip, *words[2:], "--weights", str(good / "vae"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(disk.iterdir()) == before
    assert (disk / "kept.mp4").read_bytes() == b"kept"
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


def test_a_disk_that_is_too_small_for_a_checkpoint(good, disk, capfd):
    """It is not begun: Orbax prints a traceback for each array that it still writes."""
    model = AutoencoderKLCogVideoX.from_pretrained(good / "vae")
    with pytest.raises(WeightsError, match="MiB are free there"):
        save_checkpoint(model, disk / "new")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("spoil", [read_only, full])
@pytest.mark.parametrize("kind", ["diffusers", "orbax"])
def test_a_model(good, disk, spoil, kind):
    model = AutoencoderKLCogVideoX.from_pretrained(good / "vae")
    spoil(disk)
    before = sorted(disk.rglob("*"))
    save = save_checkpoint if kind == "orbax" else AutoencoderKLCogVideoX.save_pretrained
    with pytest.raises(WeightsError, match="cannot be written"):
        save(model, disk / "new")
    assert sorted(disk.rglob("*")) == before


def test_an_interrupt_while_a_checkpoint_is_written(good, tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    def interrupt(self):
        raise KeyboardInterrupt

    def save(self, folder, items):
        time.sleep(0.5)  # what Orbax has begun goes on
        (tmp_path / "new.orbax-checkpoint-tmp/parameters").mkdir(parents=True)

    (tmp_path / "other.orbax-checkpoint-tmp").mkdir()
    monkeypatch.setattr(ocp.Checkpointer, "save", save)
    monkeypatch.setattr(Future, "result", interrupt)
    model = AutoencoderKLCogVideoX.from_pretrained(good / "vae")
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(model, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["other.orbax-checkpoint-tmp"]


def test_what_cannot_be_removed_hides_no_error(tmp_path, monkeypatch):
    """On a read-only disk the removal of a file that is not there fails too."""

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("open", "unlink", "write_bytes"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("numpy.lib.format.open_memmap", refuse)
    with pytest.raises(VideoError, match=r"x\.bin: cannot be written"):
        write_bytes(tmp_path / "x.bin", b"")
    with (
        pytest.raises(VideoError, match=r"x\.npy: cannot be written"),
        Writer(tmp_path / "x.npy", 1, (4, 4), Fraction(1)) as file,
    ):
        file.write(np.zeros((1, 4, 4, 3), np.uint8))
