"""Checkpoints: truncated, lying about themselves, pointing elsewhere, of another model."""

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.hostile.case import Case

FILE = "diffusion_pytorch_model.safetensors"
INDEX = f"{FILE}.index.json"
FIRST = "encoder.conv_in.conv.bias"
COMPLETE = "expected a complete safetensors file"


class Payload:
    """A pickle that leaves a file behind when it is read."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("unpickled"),)


def load(home: Path) -> None:
    from jaxvae import AutoencoderKLCogVideoX

    AutoencoderKLCogVideoX.from_pretrained(home / "vae")


def case(
    name: str, spoil: Callable[[Path], object], *says: str, wanted: int = 2, needs: str = "vae"
) -> Case:
    """Spoils the folder `vae` (or `shards`, which takes its place) and loads it."""

    def make(home: Path) -> None:
        if needs != "vae":
            (home / needs).rename(home / "vae")
        spoil(home / "vae")

    return Case("checkpoint", name, make, call=load, wanted=wanted, says=says, needs=(needs,))


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Another content of the file of weights."""
    return lambda folder: (folder / FILE).write_bytes(change((folder / FILE).read_bytes()))


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], object]:
    """Another header of it; what follows stays."""

    def changed(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        made = json.loads(data[8 : 8 + length])
        text = json.dumps(change(made) or made).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return content(changed)


def entry(**changes: Any) -> Callable[[Path], object]:
    """Another entry of one tensor in the header."""
    return header(lambda made: made[FIRST].update(changes))


def tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], object]:
    """Other tensors, in a file that is well formed."""

    def write(folder: Path) -> None:
        made = dict(load_file(folder / FILE))
        made = change(made) or made
        save_file(made, folder / FILE)

    return write


def index(made: Any) -> Callable[[Path], object]:
    """An index over the shards."""
    text = made if isinstance(made, (bytes, str)) else json.dumps(made)
    data = text if isinstance(text, bytes) else text.encode()
    return lambda folder: (folder / INDEX).write_bytes(data)


def shard(change: Callable[[list[Path]], object]) -> Callable[[Path], object]:
    """Something else in the place of shards."""
    return lambda folder: change(sorted(folder.glob("*-of-*.safetensors")))


def weight_map(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Another map of tensors to files."""

    def write(folder: Path) -> None:
        made = json.loads((folder / INDEX).read_text())
        change(made["weight_map"])
        (folder / INDEX).write_text(json.dumps(made))

    return write


def instead(write: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something else in the place of the file of weights."""

    def replaced(folder: Path) -> None:
        (folder / FILE).unlink()
        write(folder / FILE)

    return replaced


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload()))


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Payload()))


def only(name: str, write: Callable[[Path], object] = pickled) -> Callable[[Path], object]:
    """A file of another name, and no weights."""

    def replaced(folder: Path) -> None:
        (folder / FILE).unlink()
        write(folder / name)

    return replaced


def sparse(path: Path, size: int, start: bytes = b"") -> None:
    path.write_bytes(start)
    os.truncate(path, size)


def linked_loop(path: Path) -> None:
    other = path.with_name("other")
    path.symlink_to(other)
    other.symlink_to(path)


def shape_of(tensors: dict[str, Any], shape: tuple[int, ...]) -> None:
    tensors[FIRST] = np.zeros(shape, np.float32)


def of_type(tensors: dict[str, Any], dtype: Any) -> None:
    tensors[FIRST] = tensors[FIRST].astype(dtype)


def filled(value: float, tensors: dict[str, Any]) -> None:
    tensors[FIRST] = np.full_like(tensors[FIRST], value)


def all_named(name: Any, found: dict[str, Any]) -> None:
    found.update(dict.fromkeys(found, name))


TRUNCATED = [
    case(f"{kept} bytes left", content(lambda data, kept=kept: data[:kept]), FILE, COMPLETE)
    for kept in (0, 1, 7, 8, 9, 100, 5000, -1, -4, -1000)
]

LENGTHS = [
    case(
        f"a header of {length} bytes",
        content(lambda data, length=length: struct.pack("<Q", length) + data[8:]),
        FILE, COMPLETE,
    )
    for length in (0, 1, 2**20, 10**8, 10**8 + 1, 2**31, 2**32, 2**48, 2**63, 2**64 - 1)
]  # fmt: skip

HEADERS = [
    case(name, content(lambda data, text=text: struct.pack("<Q", len(text)) + text), FILE, COMPLETE)
    for name, text in {
        "a header that is no JSON": b"{'a': 1}" + b" " * 8,
        "a header of zeros": bytes(64),
        "a header that is a list": b"[]      ",
        "a header that is a number": b"1       ",
        "a header that is no UTF-8": b'{"\xff\xfe": 1}   ',
        "a header of brackets": b"[" * 100_000,
        "a header of nested objects": b'{"a":' * 20_000,
        "a tensor that is a string": b'{"a": "b"}      ',
        "a tensor that is null": b'{"a": null}     ',
        "a tensor without a type": b'{"a": {"shape": [1], "data_offsets": [0, 4]}}  ',
        "metadata that is a number": b'{"__metadata__": 3}     ',
        "metadata with a list": b'{"__metadata__": {"a": [1]}}    ',
    }.items()
]

ENTRIES = [
    case(f"a tensor with {name}", entry(**changes), FILE, COMPLETE)
    for name, changes in {
        "an unknown type": {"dtype": "F3"},
        "a type that is a number": {"dtype": 32},
        "a negative length": {"shape": [-4]},
        "a length of 2**62": {"shape": [2**62]},
        "lengths whose product overflows": {"shape": [2**32, 2**32, 2**32]},
        "a fractional length": {"shape": [4.5]},
        "a shape that is a string": {"shape": "4"},
        "another shape than its bytes": {"shape": [5]},
        "offsets that are reversed": {"data_offsets": [16, 0]},
        "offsets beyond the file": {"data_offsets": [0, 2**40]},
        "offsets of 2**63": {"data_offsets": [2**63, 2**63 + 16]},
        "negative offsets": {"data_offsets": [-16, 0]},
        "one offset": {"data_offsets": [0]},
        "offsets of another tensor": {"data_offsets": [0, 16]},
        "a wider type than its bytes": {"dtype": "F64"},
    }.items()
]

FILES = [
    case("a folder in its place", instead(Path.mkdir), FILE),
    case("a link to nothing", instead(lambda path: path.symlink_to("gone")), "found neither"),
    case("a link in a circle", instead(linked_loop), "found neither"),
    case("a link to itself", instead(lambda path: path.symlink_to(FILE)), "found neither"),
    case("a pipe", instead(os.mkfifo), "found neither"),
    case("a link to a device", instead(lambda path: path.symlink_to("/dev/zero")), "found neither"),
    case("text", instead(lambda path: path.write_text("weights")), FILE, COMPLETE),
    case("a pickle by its name", instead(pickled), FILE, COMPLETE),
    case("a zip by its name", instead(zipped), FILE, COMPLETE),
    case("HTML of a login page", instead(lambda path: path.write_text("<html>log in")), COMPLETE),
    case("a pointer of Git LFS", instead(lambda path: path.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n")), FILE, COMPLETE),
    case("8 GiB of zeros", instead(lambda path: sparse(path, 8 << 30)), FILE, COMPLETE),
    case("a header of 90 MB and nothing", instead(
        lambda path: sparse(path, (90 << 20) + 8, struct.pack("<Q", 90 << 20))), FILE, COMPLETE),
    case("two files behind one another", content(lambda data: data + data), FILE, COMPLETE),
    case("a byte too many", content(lambda data: data + b"\0"), FILE, COMPLETE),
    case("no file", lambda folder: (folder / FILE).unlink(), "found neither"),
    case("no file that may be read", lambda folder: shutil.rmtree(folder) or folder.write_text(""),
         "vae"),
    case("no folder", shutil.rmtree, "expected a folder"),
    *(case(f"a pickle, {suffix}", only(f"diffusion_pytorch_model{suffix}"), "a pickle can run code")
      for suffix in (".bin", ".pt", ".pth", ".ckpt")),
    case("a zip of PyTorch", only("diffusion_pytorch_model.bin", zipped), "a pickle can run code"),
    case("a pickle, .pkl", only("model.pkl"), "found neither"),
    case("a pickled array", only("model.npy", lambda path: np.save(
        path, np.array([Payload()]), allow_pickle=True)), "found neither"),
]  # fmt: skip

TENSORS = [
    case("no tensors", tensors(lambda made: {"x": np.zeros(1, np.float32)}), "missing"),
    case("an empty file of tensors", content(lambda data: struct.pack("<Q", 8) + b"{}      "),
         "missing"),
    case("a tensor less", tensors(lambda made: made.__delitem__(FIRST)), f"1 missing: {FIRST}"),
    case("a tensor more", tensors(lambda made: made.update(x=made[FIRST])), "1 unexpected: x"),
    case("a thousand tensors more", tensors(lambda made: made.update(
        {f"x{i}": np.zeros(1, np.float32) for i in range(1000)})), "1000 unexpected", "more"),
    case("a tensor with a name of 100 KB", tensors(lambda made: made.update(
        {"n" * 100_000: made[FIRST]})), "1 unexpected"),
    case("a name with an escape sequence", tensors(lambda made: made.update(
        {"\x1b[2Jgone": made[FIRST]})), "1 unexpected"),
    case("a name with line ends", tensors(lambda made: made.update(
        {"a\nb\r": made[FIRST]})), "1 unexpected"),
    case("an empty name", tensors(lambda made: made.update({"": made[FIRST]})), "1 unexpected"),
    case("a name that is a path", tensors(lambda made: made.update(
        {"../../x": made[FIRST]})), "1 unexpected: ../../x"),
    case("names of another framework", tensors(lambda made: {
        f"module.{name}": value for name, value in made.items()}), "missing", "unexpected"),
    *(case(f"a tensor of shape {shape}", tensors(partial(shape_of, shape=shape)),
           f"expected (4,), found {shape}")
      for shape in ((), (0,), (5,), (1, 4), (4, 1), (2, 2), (0, 4), (10**6,))),
    *(case(f"a tensor of {dtype}", tensors(partial(of_type, dtype=dtype)), FIRST, dtype)
      for dtype in ("int8", "uint8", "int32", "int64", "bool", "complex64")),
    *(case(f"weights that are {value}, which any bits may be", tensors(partial(filled, value)),
           wanted=0)
      for value in (float("nan"), float("inf"), float("-inf"))),
    case("weights too large for float32", tensors(lambda made: made.update(
        {FIRST: np.full(4, 1e300)})), FIRST, "too large"),
]  # fmt: skip

INDICES = [
    case(f"an index: {name}", index(made), INDEX, "weight_map")
    for name, made in {
        "empty": "", "no JSON": "{", "a list": [], "a number": 1, "null": None, "a string": "x",
        "no map": {"metadata": {}}, "a map that is a list": {"weight_map": ["a"]},
        "a map that is a string": {"weight_map": "a"}, "a map that is null": {"weight_map": None},
        "no UTF-8": b"\xff\xfe{}", "brackets": "[" * 100_000, "a pickle": pickle.dumps(Payload()),
        "an empty map": {"weight_map": {}},
    }.items()
] + [
    case(f"an index that points to {name!r:.40}", index({"weight_map": {"w": name}}), INDEX)
    for name in (["a"], {"file": "a"}, True, "../beside/kept.txt", "/etc/passwd",
                 "a/b.safetensors", "..", ".", "", 3, None,
                 "C:\\x", "\\\\host\\x", "a\0b", "x" * 5000, "gone.safetensors", "~/x",
                 "http://host/x", INDEX, "a\nb", "\x1b[2J")
]  # fmt: skip

SHARDS = [
    case("a shard twice", shard(lambda files: shutil.copy(files[0], files[1])), "as well",
         needs="shards"),
    case("a shard less", shard(lambda files: files[0].unlink()), "is not there", needs="shards"),
    case("a shard cut short", shard(lambda files: os.truncate(files[-1], 99)), COMPLETE,
         needs="shards"),
    case("a shard that is a folder", shard(lambda files: files[0].unlink() or files[0].mkdir()),
         "is not there", needs="shards"),
    case("shards linked in a circle", shard(lambda files: files[0].unlink()
         or files[1].unlink() or files[0].symlink_to(files[1]) or files[1].symlink_to(files[0])),
         "is not there", needs="shards"),
    case("a shard that is a pickle", shard(lambda files: pickled(files[0])), COMPLETE,
         needs="shards"),
    case("a map to the wrong shard", weight_map(lambda found: found.update(
         {FIRST: max(found.values())})), FIRST, needs="shards"),
    case("a map with a tensor that no shard has", weight_map(lambda found: found.update(
         {"x": max(found.values())})), "x", needs="shards"),
    case("a map without one of the tensors", weight_map(lambda found: found.pop(FIRST)), FIRST,
         needs="shards"),
    case("a map to one shard of all", weight_map(partial(all_named, "x.safetensors")),
         "x.safetensors, which is not there", needs="shards"),
    case("a shard that the map leaves out", lambda folder: shutil.copy(
         next(folder.glob("*.safetensors")), folder / "z.safetensors"), wanted=0, needs="shards"),
    case("a shard that is a link to its like elsewhere", shard(lambda files: shutil.move(
         files[0], files[0].parents[1] / "moved") and files[0].symlink_to(
         files[0].parents[1] / "moved")), wanted=0, needs="shards"),
]  # fmt: skip

CASES = [*TRUNCATED, *LENGTHS, *HEADERS, *ENTRIES, *FILES, *TENSORS, *INDICES, *SHARDS]
