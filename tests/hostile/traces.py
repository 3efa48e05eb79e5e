"""Golden traces for `check`: cut short, changed, signed by somebody who knows the format."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.case import Case
from tests.hostile.checkpoints import Payload, linked_loop

WORDS = ("parity", "check", "trace", "--pair", "tiny:PAIR", "--out", "out", "--quiet")
UNNAMED = ("parity", "check", "trace", "--out", "out", "--quiet")
PARTS = ("pair", "layout", "settings", "environment", "facts", "only", "modules",
         "tensors", "state", "gaps", "cases")  # fmt: skip


def case(
    name: str, spoil: Callable[[Path], object], *says: str, words: tuple[str, ...] = WORDS
) -> Case:
    """Spoils the folder `trace`, and checks the port against it, beside a module that tells."""

    def make(home: Path) -> None:
        (home / "evil.py").write_text("open('ran', 'w')\n")
        spoil(home / "trace")

    return Case("trace", name, make, words=words, says=says, needs=("trace",))


def argument(made: dict[str, Any], place: str, value: Any) -> None:
    """One more of the first case."""
    positional, keywords = made["cases"][0]["arguments"]["tuple"]
    if place == "a keyword":
        keywords["dict"]["scale"] = value
    else:
        positional["tuple"].append(value)


def index(name: str, content: bytes | Callable[[Path], object], *says: str) -> Case:
    """Something in the place of the index."""

    def write(trace: Path) -> None:
        path = trace / "trace.json"
        path.unlink()
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)

    return case(name, write, "trace.json", *says)


def changed(name: str, change: Callable[[dict[str, Any]], object], *says: str) -> Case:
    """An index in which something was changed, and which nobody signed."""

    def write(trace: Path) -> None:
        made = json.loads((trace / "trace.json").read_text())
        change(made)
        (trace / "trace.json").write_text(json.dumps(made))

    return case(name, write, *says)


def signed(
    name: str, change: Callable[[dict[str, Any]], object], *says: str, words: Any = WORDS
) -> Case:
    """The same with the digest that belongs to it."""

    def write(trace: Path) -> None:
        from parity.traces import index

        made = json.loads((trace / "trace.json").read_text())
        del made["sha256"]
        change(made)
        digest = {"sha256": index.signature(made)}
        (trace / "trace.json").write_text(json.dumps(digest | made))

    return case(name, write, *says, words=words)


def arrays_of(trace: Path) -> list[Path]:
    return sorted((trace / "arrays").iterdir())


def array(name: str, spoil: Callable[[Path], object], *says: str) -> Case:
    """Something in the place of an array's file."""
    return case(f"{name} for a file", lambda trace: spoil(arrays_of(trace)[0]), ".safetensors",
                *says)  # fmt: skip


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replaced(path: Path) -> None:
        path.unlink()
        make(path)

    return replaced


INDICES = [
    index("no index", lambda path: None, "give the folder that"),
    index("empty", b"", "no JSON"),
    index("cut short", b'{"format": 1', "no JSON"),
    index("text", b"trace", "no JSON"),
    index("no UTF-8", b"\xff\xfe{}", "no JSON"),
    index("a pickle", pickle.dumps(Payload()), "no JSON"),
    index("a list", b"[]", "no index"),
    index("null", b"null", "no index"),
    index("an empty object", b"{}", "no index"),
    index("a folder", Path.mkdir, "not a file"),
    index("a link to nothing", lambda path: path.symlink_to("gone"), "no such file"),
    index("a link in a circle", linked_loop, "give the folder that"),
]

CHANGED = [
    changed("another format", lambda made: made.update(format=99), "format 99"),
    changed("a format that is text", lambda made: made.update(format="1"), "format '1'"),
    changed("a format that is a list", lambda made: made.update(format=[]), "format []"),
    changed("a format of any length", lambda made: made.update(format="x" * 5000), "format 'xxx"),
    changed("no format", lambda made: made.pop("format"), "no index"),
    changed("no digest", lambda made: made.pop("sha256"), "SHA-256 differs"),
    changed("a digest that is null", lambda made: made.update(sha256=None), "SHA-256 differs"),
    changed("facts that nobody signed", lambda made: made["facts"].update(x=1), "SHA-256 differs"),
    *(signed(f"without {part}", lambda made, part=part: made.pop(part),
             f"{part!r} is missing")
      for part in PARTS),
    signed("no cases", lambda made: made.update(cases=[]), "has no case"),
    signed("a case twice", lambda made: made["cases"].append(made["cases"][0]), "has 2 cases"),
    signed("another pair", lambda made: made.update(pair="other"), "pair 'other'"),
    signed("another layout", lambda made: made.update(layout={"*": "channels_first"}), "layout"),
    signed("cases that are a number", lambda made: made.update(cases=3), "cases: expected"),
    signed("a case that is a number", lambda made: made.update(cases=[3]), "cases[0]: expected"),
    signed("a case without calls", lambda made: made["cases"][0].pop("calls"), "'calls' is miss"),
    signed("a case with more", lambda made: made["cases"][0].update(x=1), "cases[0]", "'x'"),
    signed("a method that is no method", lambda made: made["cases"][0].update(
        nnx="function:os.system"), "'os.system'"),
    signed("a shipped method that is none", lambda made: made["cases"][0].update(
        shipped="function:builtins.eval"), "'builtins.eval'"),
    *(signed(f"{name!r} as {place}", lambda made, name=name, place=place: made["cases"][0].update(
        {place: name}), "the trace calls", "Offline.methods")
      for name in ("save_pretrained", "from_pretrained", "__init__", "__setattr__", "block", "",
                   "function:", "function:forward.__globals__", "a" * 5000, "\x1b[2J\u202e")
      for place in ("nnx", "shipped")),
    *(signed(f"{value} as {place}", lambda made, value=value, place=place: argument(
        made, place, value), "Offline.words")
      for value in ("mode", "", "/etc/passwd", {"bytes": "2f"}, {"list": ["../x"]},
                    {"dict": {"a": {"tuple": ["x"]}}}, {"opaque": "Path"}, "\x1b[2J")
      for place in ("an argument", "a keyword")),
    *(signed(f"pair {name!r}", lambda made, name=name: made.update(pair=name), "not registered",
             "--pair", words=UNNAMED)
      for name in ("evil:PAIR", "evil:os.system", "antigravity:x", "", "../evil", "cogvideox:PAIR",
                   "jaxvae.pairs.kl.pair:PAIR", "\x1b[2J:x")),
    *(signed(f"an array named {name!r:.30}", lambda made, name=name: made["cases"][0]["given"][
        0].update(digest=name), "is no digest of an array")
      for name in ("../elsewhere", "/etc/passwd", "..", "", "a/b", "trace.json", 3, None,
                   "0" * 32 + "\n", "x" * 500, "\x1b[2J")),
    signed("an array of another shape", lambda made: made["cases"][0]["given"][0].__setitem__(
        "shape", [2**31, 2**31])),
    signed("an array of a negative length", lambda made: made["cases"][0]["given"][0].__setitem__(
        "shape", [-2])),
    signed("an array of an unknown type", lambda made: made["cases"][0]["given"][0].__setitem__(
        "dtype", "float7"), "'float7' is no type of numbers"),
    signed("an array of objects", lambda made: made["cases"][0]["given"][0].__setitem__(
        "dtype", "object")),
    signed("an array that no file has", lambda made: made["cases"][0]["given"][0].__setitem__(
        "digest", "00" * 16), "no such file"),
    signed("a digest that is no digest", lambda made: made["cases"][0]["given"][0].__setitem__(
        "digest", "../x"), "is no digest of an array"),
]  # fmt: skip

ARRAYS = [
    array("a file less", Path.unlink, "no such file"),
    array("an empty file", lambda path: path.write_bytes(b""), "truncated"),
    array("a file cut short", lambda path: os.truncate(path, 100), "truncated"),
    array("a file that is longer", lambda path: os.truncate(path, 8 << 30), "its content is not"),
    array("a byte that is another", lambda path: path.write_bytes(
        path.read_bytes()[:-1] + b"\x7f"), "was recorded"),
    array("a pickle", lambda path: path.write_bytes(pickle.dumps(Payload())), "truncated"),
    array("a folder", instead(Path.mkdir), "no such file"),
    array("a pipe", instead(os.mkfifo), "no such file"),
    array("a link in a circle", instead(linked_loop), "no such file"),
    array("another one of the files", lambda path: shutil.copy(
        arrays_of(path.parents[1])[1], path), "was recorded"),
]  # fmt: skip

FOLDERS = [
    Case("trace", "no folder", words=WORDS, says=("give the folder that",)),
    Case("trace", "a file for a folder", lambda home: (home / "trace").touch(), words=WORDS,
         says=("trace",)),
    Case("trace", "an empty folder", lambda home: (home / "trace").mkdir(), words=WORDS,
         says=("give the folder that",)),
    Case("trace", "a pair that is none", words=(*WORDS[:4], "os:path", *WORDS[5:]),
         says=("expected a parity.Pair",), needs=("trace",)),
    Case("trace", "a pair that is not there", words=(*WORDS[:4], "gone:PAIR", *WORDS[5:]),
         says=("cannot be loaded",), needs=("trace",)),
    Case("trace", "a checkpoint for a trace", words=("parity", "check", "vae", *WORDS[3:]),
         says=("trace.json",), needs=("vae",)),
]  # fmt: skip

CASES = [*INDICES, *CHANGED, *ARRAYS, *FOLDERS]
