"""Videos in files: what is counted, cut, written, and refused."""

import errno
from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from jaxvae.io import video
from jaxvae.io.video import (
    Video,
    VideoError,
    Writer,
    check_output,
    find_video,
    from_pixels,
    to_pixels,
)


def drawn(frames=5, height=24, width=32):
    """A square that moves over a gradient: codecs have little to lose."""
    rows, columns = np.mgrid[:height, :width]
    made = np.stack([np.stack([rows * 5, columns * 4, rows + columns], -1)] * frames)
    for t in range(frames):
        made[t, 4:10, 3 * t : 3 * t + 6] = (200, 40, 90)
    return made.astype(np.uint8)


def write(path, frames, rate=Fraction(25)):
    with Writer(path, len(frames), frames.shape[1:3], rate) as file:
        file.write(frames[:2])
        file.write(frames[2:])
    return path


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov", ".webm", ".MP4"])
def test_what_is_written_is_read_again(tmp_path, suffix):
    frames = drawn()
    path = write(tmp_path / f"clip{suffix}", frames)
    found = find_video(path)
    assert (found.frames, found.size, found.rate) == (5, (24, 32), 25)
    back = np.concatenate(list(found.parts(2)))
    assert back.shape == frames.shape
    assert np.abs(back.astype(int) - frames).mean() < 4
    assert [path.name for path in tmp_path.iterdir()] == [f"clip{suffix}"]


def test_what_is_written_says_which_colours_it_has(tmp_path):
    for suffix in (".mp4", ".webm"):
        with av.open(str(write(tmp_path / f"clip{suffix}", drawn()))) as file:
            frame = next(file.decode(video=0))
        assert (frame.colorspace, frame.color_range) == (6, 1)


@pytest.mark.parametrize("name", ["held.jpg", "held.png"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_stands_as_the_camera_was_held(tmp_path, orientation, name):
    image = Image.fromarray(drawn()[0])
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / name, exif=exif, quality=98)
    turned = ImageOps.exif_transpose(Image.open(tmp_path / name))
    found = find_video(tmp_path / name)
    assert found.size == np.shape(turned)[:2]
    assert np.abs(found.read()[0].astype(int) - np.asarray(turned)).mean() < 4


def test_an_image_whose_exif_is_broken_is_read_as_it_is(tmp_path):
    path, image = tmp_path / "broken.jpg", Image.fromarray(drawn()[0])
    image.save(path, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff", quality=98)
    with pytest.warns(UserWarning, match="EXIF|TIFF|[Cc]orrupt"):  # Pillow says so
        read = find_video(path).read()[0]
    assert np.abs(read.astype(int) - np.asarray(image)).mean() < 4


def test_an_array_is_kept_to_the_bit(tmp_path):
    frames = drawn(height=23)
    found = find_video(write(tmp_path / "clip.npy", frames))
    assert np.array_equal(np.concatenate(list(found.parts(3))), frames)


def test_endings_in_capitals(tmp_path):
    frames = drawn(1)
    for name in ("image.PNG", "array.NPY"):
        check_output(tmp_path / name)
        with Writer(tmp_path / name, 1, frames.shape[1:3], Fraction(1)) as file:
            file.write(frames)
        assert np.array_equal(find_video(tmp_path / name).read(), frames)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(VideoError, match=r"folder\.png: is a folder; name a file"):
        check_output(tmp_path / "folder.png")


def test_odd_sizes_are_coded_too(tmp_path):
    assert find_video(write(tmp_path / "odd.mp4", drawn(height=23, width=31))).size == (23, 31)


def test_a_window(tmp_path):
    frames = drawn(7)
    path = write(tmp_path / "clip.npy", frames)
    found = find_video(path, first=2, frames=4).window((8, 9), corner=(3, 5))
    parts = list(found.parts(3))
    assert [len(part) for part in parts] == [3, 1]
    assert np.array_equal(np.concatenate(parts), frames[2:6, 3:11, 5:14])
    assert find_video(path, frames=100).frames == 7
    middle = find_video(path).window((20, 20))
    assert np.array_equal(middle.read(), frames[:, 2:22, 6:26])
    assert np.array_equal(middle.window((2, 2)).read(), frames[:, 11:13, 15:17])
    for size, corner in (((25, 4), None), ((4, 33), None), ((4, 4), (21, 0))):
        with pytest.raises(VideoError, match=r"frames of 24x32 hold no .* window at row"):
            find_video(path).window(size, corner)


def test_an_array_of_floats_is_read_where_it_is_wanted(tmp_path):
    path = tmp_path / "clip.npy"
    np.save(path, drawn().astype(np.float32) / 255)
    assert np.array_equal(find_video(path, floats=True).read(), np.load(path))
    with pytest.raises(VideoError, match=r"expected uint8 .*, found float32"):
        find_video(path)
    np.save(path, drawn().astype(np.int32))
    with pytest.raises(VideoError, match=r"expected uint8 or float .*, found int32"):
        find_video(path, floats=True)


def test_an_interrupt_while_a_file_is_opened_leaves_none(tmp_path, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(video, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt), Writer(tmp_path / "a.npy", 2, (4, 4), Fraction(1)):
        pass
    assert not list(tmp_path.iterdir())


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"before")
    with (
        pytest.raises(ValueError, match="Unexpected numpy array shape"),
        Writer(path, 5, (24, 32), Fraction(25)) as file,
    ):
        file.write(drawn()[..., :2])
    assert path.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_read_is_said(tmp_path):
    text, array = tmp_path / "notes.mp4", tmp_path / "float.npy"
    text.write_text("no video")
    np.save(array, np.zeros((2, 4, 4, 3), np.float32))
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}]), allow_pickle=True)
    short = write(tmp_path / "short.npy", drawn(3))
    for call, message in (
        (lambda: find_video(tmp_path / "gone.mp4"), "gone.mp4: no such file; expected a video"),
        (lambda: find_video(text), "notes.mp4: not a video that FFmpeg can read"),
        (lambda: find_video(array), r"expected uint8 \(frames, height, width, 3\), found float32"),
        (lambda: find_video(pickled), "pickled.npy: not a readable .npy file"),
        (lambda: find_video(short, first=3), "3 frames, and none from number 3 on"),
    ):
        with pytest.raises(VideoError, match=message):
            call()


def test_a_file_that_became_shorter(tmp_path):
    path = write(tmp_path / "clip.npy", drawn(3))
    with pytest.raises(VideoError, match="2 frames are missing that were there before"):
        list(Video(path, 0, 5, (0, 0), (24, 32), Fraction(24)).parts())


def test_frames_that_change_their_size(tmp_path, monkeypatch):
    path = write(tmp_path / "clip.npy", drawn(4))
    frames = [*drawn(2), *drawn(2, height=20)]
    monkeypatch.setattr(video, "_decoded", lambda path, floats: iter(frames))
    with pytest.raises(VideoError, match="frame 2 has 20x32 pixels, which are less"):
        list(Video(path, 0, 4, (0, 0), (24, 32), Fraction(24)).parts())


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_is_full_is_said(tmp_path, after):
    """At a frame, and at the end."""

    def fill():
        with Writer(tmp_path / "clip.mp4", 5, (24, 32), Fraction(25)) as file:
            file._container = SimpleNamespace(mux=full, close=file._container.close)
            for _ in range(1 - after):
                file.write(drawn(40))

    with pytest.raises(VideoError, match=r"clip.mp4: cannot be written \(.*No space left"):
        fill()
    assert not list(tmp_path.iterdir())


def test_the_room_for_an_array_is_taken_first(tmp_path, monkeypatch):
    """Who writes to a mapped file on a full disk is killed."""
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(VideoError, match=r"clip.npy: cannot be written \(.*No space left"):
        write(tmp_path / "clip.npy", drawn())
    assert not list(tmp_path.iterdir())


def test_pixels_and_values():
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    values = from_pixels(pixels)
    assert (values.dtype, values.min(), values.max()) == (np.float32, -1, 1)
    assert np.array_equal(to_pixels(values), pixels)
    assert to_pixels(np.array([[[[-3.0, 7.0, 0.0]]]])).tolist() == [[[[0, 255, 128]]]]
