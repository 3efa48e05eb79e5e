import importlib.metadata

import numpy as np
import pytest

from jaxvae.pairs import inputs
from jaxvae.pairs.inputs import load_clip, normal, procedural, sample_file
from parity.core.exceptions import InputError


def refused(match, video, frames=2, size=(8, 8)):
    with pytest.raises(InputError, match=match) as caught:
        load_clip(str(video), frames, size, 0)
    assert "\n" not in str(caught.value)


def test_the_sample_window():
    import imageio.v3 as imageio

    clip = load_clip(None, 3, (16, 24), 0)
    assert clip.frames.shape == (1, 3, 3, 16, 24)
    assert clip.frames.dtype == np.float32
    assert "frames 0-2, rows 200-215, columns 500-523" in clip.source
    frame = next(imageio.imiter(sample_file(), plugin="pyav"))[200:216, 500:524]
    np.testing.assert_array_equal(
        np.round((clip.frames[0, :, 0] + 1) * 127.5), frame.transpose(2, 0, 1)
    )


def test_without_the_sample_a_procedural_clip_is_named(monkeypatch):
    def missing(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(inputs.importlib.metadata, "files", missing)
    clip = load_clip(None, 2, (8, 8), 3)
    assert clip.source == "procedural moving textures, seed 3"
    assert clip.frames.shape == (1, 3, 2, 8, 8)


def test_the_procedural_clip_is_seeded_moves_and_is_no_noise():
    clip = procedural(5, (32, 32), 0)
    np.testing.assert_array_equal(clip, procedural(5, (32, 32), 0))
    assert (clip != procedural(5, (32, 32), 1)).any()
    values = clip.astype(float)
    assert np.abs(values[1:] - values[:-1]).mean() > 1
    # neighbours are alike, as in natural scenes
    assert (
        np.abs(values[:, 1:] - values[:, :-1]).mean() < 0.5 * np.abs(values - values.mean()).mean()
    )


def test_an_array_file_is_centred_and_scaled(tmp_path):
    path = tmp_path / "clip.npy"
    array = np.random.default_rng(0).integers(0, 256, (4, 10, 12, 3), np.uint8)
    np.save(path, array)
    clip = load_clip(str(path), 2, (8, 8), 0)
    expected = array[:2, 1:9, 2:10].astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(clip.frames[0], expected.transpose(3, 0, 1, 2), atol=1e-6)
    floats = (array / 255 * 2 - 1).astype(np.float32)
    np.save(path, floats)
    frames = load_clip(str(path), 4, (10, 12), 0).frames
    np.testing.assert_array_equal(frames[0], floats.transpose(3, 0, 1, 2))


def test_a_video_file(tmp_path, monkeypatch):
    import imageio.v3 as imageio

    path = tmp_path / "clip.mp4"
    imageio.imwrite(path, np.zeros((3, 32, 48, 3), np.uint8), plugin="pyav", codec="libx264")
    assert load_clip(str(path), 3, (32, 48), 0).frames.shape == (1, 3, 3, 32, 48)
    path.rename(tmp_path / "at 12:00.mp4")  # no protocol
    monkeypatch.chdir(tmp_path)
    assert load_clip("at 12:00.mp4", 3, (32, 48), 0).frames.shape == (1, 3, 3, 32, 48)
    (tmp_path / "at 12:00.mp4").rename(path)
    refused("clip.mp4: 9 frames asked for, 3 found; lower --frames", path, frames=9)


def test_bad_files_get_one_line(tmp_path):
    refused("no such file", tmp_path / "missing.mp4")
    refused("no such file", tmp_path)
    text = tmp_path / "notes.mp4"
    text.write_text("hello")
    refused(r"notes\.mp4: not a video", text)
    (tmp_path / "empty.mp4").touch()
    refused(r"empty\.mp4: not a video", tmp_path / "empty.mp4")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY garbage")
    refused(r"broken\.npy: not a readable \.npy", tmp_path / "broken.npy")


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (
            np.zeros((4, 8, 8), np.uint8),
            r"\(frames, height, width, 3\), found uint8 \(4, 8, 8\)",
        ),
        (np.zeros((4, 8, 8, 3), np.int64), "expected uint8 or float"),
        (np.zeros((1, 8, 8, 3), np.uint8), "2 frames asked for, 1 found"),
        (np.zeros((4, 4, 8, 3), np.uint8), "hold no 8x8 window"),
        (np.full((4, 8, 8, 3), 255.0), r"floats must lie in \[-1, 1\]"),
        (np.array(["a"], object), "not a readable .npy"),
    ],
    ids=["rank", "dtype", "short", "small", "range", "pickle"],
)
def test_bad_arrays_get_one_line(tmp_path, array, match):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    refused(match, tmp_path / "a.npy")


def test_nan_is_named_with_its_place(tmp_path):
    array = np.zeros((2, 8, 8, 3), np.float32)
    array[1, 2, 3, 0] = np.nan
    np.save(tmp_path / "a.npy", array)
    refused(r"a\.npy: nan at index \(1, 2, 3, 0\) \(1 entries are not finite\)", tmp_path / "a.npy")


def test_normal_is_seeded():
    np.testing.assert_array_equal(normal((3, 4), 5), normal((3, 4), 5))
    assert normal((100, 100), 0, 30.0).mean() == pytest.approx(30, abs=0.1)
