"""Videos and arrays of frames: no videos, cut short, too small, lying about themselves."""

import os
import pickle
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.case import Case
from tests.hostile.checkpoints import Payload, linked_loop

VAE = ("--weights", "vae")


def frames(home: Path) -> None:
    """As `parity run` reads them."""
    from jaxvae.pairs.inputs import load_clip

    load_clip(str(next(home.glob("bad*"))), 2, (4, 4), 0)


def video(home: Path) -> None:
    """As `jaxvae` reads them, all of them."""
    from jaxvae.io.video import find_video

    for _ in find_video(next(home.glob("bad*")), 0, 2).parts():
        pass


def both(
    name: str, suffix: str, make: Callable[[Path], object], *says: str, needs: str = "clip.npy"
) -> list[Case]:
    """The same file for both readers."""

    def write(home: Path) -> None:
        make(home / f"bad{suffix}")

    return [
        Case("video", f"{name}, for {who}", write, call=call, says=("bad", *says), needs=(needs,))
        for who, call in (("parity", frames), ("jaxvae", video))
    ]


def array(name: str, value: Any, *says: str) -> list[Case]:
    """An array in a file of NumPy's."""
    return both(name, ".npy", lambda path: np.save(path, value, allow_pickle=True), *says)


def npy(descr: str, order: str = "False", shape: str = "(2, 4, 4, 3)", data: bytes = b"") -> bytes:
    """A file of NumPy's with this header, whatever it says."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def written(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def of_clip(change: Callable[[bytes], bytes], suffix: str) -> Callable[[Path], object]:
    """The good clip, changed."""
    return lambda path: path.write_bytes(change(path.with_name(f"clip{suffix}").read_bytes()))


def black(path: Path, side: int) -> None:
    """Three frames that take a few kilobytes."""
    import av

    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=24)
        stream.height = stream.width = side
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "ultrafast"}
        stream.codec_context.thread_count = 1
        frame = av.VideoFrame(side, side, "yuv420p")
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for _ in range(3):
            frame.pts = None
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def png(path: Path, rows: int, side: int) -> None:
    """A black picture with so many of the rows that it says it has."""
    packed = zlib.compressobj(1)
    data = b"".join([*(packed.compress(bytes(1 + 3 * side)) for _ in range(rows)), packed.flush()])
    chunks = (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", data)
    content = b"\x89PNG\r\n\x1a\n"
    for name, held in (*chunks, (b"IEND", b"")):
        content += struct.pack(">I", len(held)) + name + held
        content += struct.pack(">I", zlib.crc32(name + held))
    path.write_bytes(content)


U1, F4 = np.uint8, np.float32
ARRAYS = [
    *array("grey frames", np.zeros((2, 4, 4), U1)),
    *array("one channel", np.zeros((2, 4, 4, 1), U1)),
    *array("four channels", np.zeros((2, 4, 4, 4), U1)),
    *array("channels first", np.zeros((2, 3, 4, 4), U1)),
    *array("five axes", np.zeros((1, 2, 4, 4, 3), U1)),
    *array("a number", np.uint8(3)),
    *array("no frames", np.zeros((0, 4, 4, 3), U1)),
    *array("frames without pixels", np.zeros((2, 0, 0, 3), U1)),
    *array("frames of one pixel's height", np.zeros((2, 0, 4, 3), U1)),
    *array("int16", np.zeros((2, 4, 4, 3), np.int16)),
    *array("int64", np.zeros((2, 4, 4, 3), np.int64)),
    *array("booleans", np.zeros((2, 4, 4, 3), bool)),
    *array("complex numbers", np.zeros((2, 4, 4, 3), np.complex64)),
    *array("strings", np.full((2, 4, 4, 3), "x")),
    *array("dates", np.zeros((2, 4, 4, 3), "datetime64[s]")),
    *array("records", np.zeros((2, 4, 4, 3), [("a", "u1")])),
    *array("objects, pickled", np.array([[[[Payload()] * 3] * 4] * 4] * 2, object)),
    *array("NaN", np.full((2, 4, 4, 3), np.nan, F4)),
    *array("infinities", np.full((2, 4, 4, 3), np.inf, F4)),
    *array("floats of 255", np.full((2, 4, 4, 3), 255, F4)),
    *array("floats below -1", np.full((2, 4, 4, 3), -1.5, F4)),
]

HEADERS = [
    *(one for name, content in {
        "empty": b"",
        "only the magic": b"\x93NUMPY",
        "an unknown version": b"\x93NUMPY\x09\x00" + bytes(100),
        "a header cut short": b"\x93NUMPY\x01\x00\xff\xff{'descr'",
        "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        "a header that is code": npy("__import__('os').system('touch unpickled')"),
        "a header of brackets": npy("'|u1'", shape="(" * 5000),
        "a negative length": npy("'|u1'", shape="(-2, 4, 4, 3)"),
        "a length that is text": npy("'|u1'", shape="('2', 4, 4, 3)"),
        "a length of 2**62": npy("'|u1'", shape=f"({2**62}, 4, 4, 3)"),
        "a length of 10**30": npy("'|u1'", shape=f"({10**30}, 4, 4, 3)"),
        "lengths whose product overflows": npy("'|u1'", shape=f"({2**40}, {2**40}, {2**40}, 3)"),
        "an unknown type": npy("'|q9'"),
        "the type of objects": npy("'|O'", data=pickle.dumps(Payload())),
        "a type that is a number": npy("3"),
        "an order that is text": npy("'|u1'", order="'x'"),
        "no data": npy("'|u1'"),
        "too little data": npy("'|u1'", data=bytes(95)),
        "a terabyte that is not there": npy("'|u1'", shape="(1024, 32768, 10923, 3)"),
        "text": b"frames",
        "a pickle": pickle.dumps(Payload()),
        "an archive": b"PK\x03\x04" + bytes(100),
      }.items() for one in both(f"an array: {name}", ".npy", written(content))),
    *(one for kept in (10, 100, 128, 200) for one in both(
        f"an array of which {kept} bytes are left", ".npy",
        of_clip(lambda data, kept=kept: data[:kept], ".npy"))),
]  # fmt: skip

FILES = [
    *(one for name, content in {
        "empty": b"", "text": b"a video\n", "zeros": bytes(4096),
        "a pickle": pickle.dumps(Payload()),
        "ones": b"\xff" * 4096, "the name of a format": b"\0\0\0\x18ftypmp42" + bytes(12),
        "a box of 2**63 bytes": b"\0\0\0\x01ftyp" + struct.pack(">Q", 2**63) + bytes(64),
        "boxes in boxes": b"\0\0\0\x08moov" * 10_000,
      }.items() for suffix in (".mp4", ".mkv") for one in both(
        f"{suffix}: {name}", suffix, written(content))),
    *(one for part in (0.1, 0.5, 0.9) for one in both(
        f"{part:.0%} of a video", ".mp4",
        of_clip(lambda data, part=part: data[: int(part * len(data))], ".mp4"), needs="clip.mp4")),
    *(one for name, content in {
        "a playlist": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nclip.mp4\n#EXT-X-ENDLIST\n",
        "a list for FFmpeg": "ffconcat version 1.0\nfile clip.mp4\n",
        "a session": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 9 RTP/AVP 96\n",
        "a manifest": "<MPD><Period><BaseURL>clip.mp4</BaseURL></Period></MPD>",
      }.items()
      for suffix in (".m3u8", ".ffconcat", ".sdp", ".mpd", ".txt", ".mp4", ".gif", ".png", "")
      for one in both(f"{name} that ends in {suffix!r}", suffix, written(content.encode()),
                      needs="clip.mp4")),
    *(one for suffix in (".mkv", ".webm", ".avi", ".gif", ".png", ".jpg", ".bmp", ".webp", ".ts")
      for one in both(f"an MP4 that ends in {suffix}", suffix, of_clip(bytes, ".mp4"),
                      needs="clip.mp4")),
    *(one for side in (5000, 8192, 12000) for one in both(
        f"an MP4 of {side}x{side} pixels", ".mp4", partial(black, side=side))),
    *(one for side in (6000, 8192) for one in both(
        f"a PNG of {side}x{side} pixels", ".png", partial(png, rows=side, side=side))),
    *both("a PNG that says it has 60000x60000 pixels", ".png", partial(png, rows=1, side=60_000)),
    *both("a GIF that says it has 65535x65535 pixels", ".gif", written(
        b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x44\x01\0;")),
    *both("a BMP that says it has 50000x50000 pixels", ".bmp", written(
        b"BM" + struct.pack("<IIIIiiHH", 100, 0, 54, 40, 50_000, 50_000, 1, 24) + bytes(70))),
    *both("a list of other files", ".mp4", written(b"#EXTM3U\n/etc/passwd\n")),
    *both("a list of files for FFmpeg", ".mp4",
          written(b"ffconcat version 1.0\nfile /etc/passwd\n")),
    *both("a folder", ".mp4", Path.mkdir),
    *both("a folder as an array", ".npy", Path.mkdir),
    *both("a link to nothing", ".mp4", lambda path: path.symlink_to("gone")),
    *both("a link in a circle", ".npy", linked_loop),
    *both("a pipe", ".mp4", os.mkfifo),
    *both("a pipe as an array", ".npy", os.mkfifo),
    *both("a device", ".npy", lambda path: path.symlink_to("/dev/zero")),
    *both("a device as a video", ".mp4", lambda path: path.symlink_to("/dev/zero")),
]  # fmt: skip

WORDS = [
    Case("video", f"parity run cogvideox {' '.join(words)}", says=says, needs=("clip.npy",),
         words=("parity", "run", "cogvideox", "--quiet", "--out", "out", *words))
    for words, says in (
        (("--video", "gone.mp4"), ("gone.mp4: no such file",)),
        (("--video", ""), ("no such file",)),
        (("--video", "clip.npy"), ("17 frames asked for, 4 found; lower --frames",)),
        (("--video", "clip.npy", "--frames", "2"), ("hold no 64x64 window", "a smaller one")),
        (("--video", "http://127.0.0.1:9/x.mp4"), ("no such file",)),
        (("--video", "a\nb.mp4"), ("no such file",)),
        (("--frames", "0"), ("--frames",)), (("--frames", "-1"), ("--frames",)),
        (("--frames", "1e3"), ("--frames",)), (("--frames", str(10**30)), ("--frames",)),
        (("--size", "0x0"), ("--size",)), (("--size", "-1x4"), ("--size",)),
        (("--size", "4"), ("--size",)), (("--size", "4x4x4"), ("--size",)),
        (("--size", f"{10**30}x4"), ("a smaller one",)), (("--size", "²x4"), ("--size",)),
        (("--size", "1000000x1000000"), ("a smaller one",)),
        (("--frames", "1000000"), ("--frames",)),
        (("--seed", "-1"), ("--seed",)), (("--seed", str(2**64)), ("--seed",)),
    )
] + [
    Case("video", f"jaxvae {' '.join(words)}", words=("jaxvae", *words, *VAE, "--quiet"), says=says,
         needs=("clip.npy", "clip.mp4", "vae"))
    for words, says in (
        (("encode", "clip.npy", "latent.npz"), ("latent.npz", ".safetensors")),
        (("encode", "gone.npy", "out.safetensors"), ("gone.npy: no such file",)),
        (("encode", "clip.npy", "no/out.safetensors"), ("no/out.safetensors",)),
        (("encode", "clip.npy", "vae"), ("vae",)),
        (("encode", "clip.npy", "out.safetensors", "--first", "4"), ("none from number 4",)),
        (("encode", "clip.npy", "out.safetensors", "--first", str(10**30)), ("none from number",)),
        (("encode", "clip.mp4", "out.safetensors", "--size", "64x64"), ("has frames of 16x16",)),
        (("reconstruct", "clip.npy", "out.exe"), ("out.exe: cannot be written",)),
        (("reconstruct", "clip.npy", "no/out.npy"), ("make no first",)),
        (("reconstruct", "clip.npy", "out.npy", "--compare", "no/x.png"), ("no/x.png",)),
        (("reconstruct", "clip.npy", "out.npy", "--tile", "0x0"), ("--tile",)),
        (("reconstruct", "clip.npy", "out.npy", "--tile", "1x1"), ("tiles of 1x1",)),
        (("reconstruct", "clip.npy", "vae.npy", "--frames", "0"), ("--frames",)),
    )
]  # fmt: skip

CASES = [*ARRAYS, *HEADERS, *FILES, *WORDS]
