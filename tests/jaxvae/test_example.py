"""examples/cogvideox.py with its own small model, and with one that diffusers saved."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from tests.docs.context import autoencoder

EXAMPLE = Path(__file__).parents[2] / "examples" / "cogvideox.py"


@pytest.fixture(scope="module")
def main():
    return runpy.run_path(str(EXAMPLE))["main"]


def test_a_small_model(main, capsys):
    back = main(["--size", "8"])
    assert back.shape == (1, 9, 8, 8, 3)
    printed = capsys.readouterr().out
    assert "video (1, 9, 8, 8, 3) to latent (1, 3, 2, 2, 2)" in printed
    assert "the same, bit for bit" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frames", "5"], "expected 8 n + 1"),
        (["--frames", "-7", "--size", "8"], "expected 8 n + 1"),
        (["--size", "0"], "--size: expected a multiple of 4"),
        (["--size", "7"], "--size: expected a multiple of 4"),
        (["--size", "32", "--tile", "7"], "--tile: expected a multiple of 16"),
        (["--size", "32", "--tile", "0"], "--tile: expected a multiple of 16"),
        (["--video", "gone.mp4"], "gone.mp4: no such file"),
        (["--weights", "gone"], "gone: expected a folder or a Hub id"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(main, capsys, words, message):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
def test_saved_weights_and_tiles(main, tmp_path, capsys):
    autoencoder(str(tmp_path))
    video = tmp_path / "video.npy"
    np.save(video, np.random.default_rng(0).integers(0, 255, (9, 32, 32, 3), np.uint8))
    arguments = ["--size", "32", "--weights", str(tmp_path), "--video", str(video)]
    whole = main(arguments)
    tiled = main([*arguments, "--tile", "16"])
    assert whole.shape == tiled.shape == (1, 9, 32, 32, 3)
    assert not np.array_equal(whole, tiled)
    assert capsys.readouterr().out.count("bit for bit") == 2
