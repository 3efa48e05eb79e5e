"""Reports for `diff` and `show`: edited, cut short, of another format, or none at all."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.case import Case
from tests.hostile.checkpoints import Payload, linked_loop

PARTS = ("format", "name", "verdict", "facts", "environment", "faults", "partial", "inputs",
         "unexercised", "emulations", "nonfinite", "coverage", "weights", "ladder", "columns",
         "rows", "reasons")  # fmt: skip
DIFF = ("parity", "diff", "report", "bad")
SHOW = ("parity", "show", "bad")


def file(name: str, make: Callable[[Path], object], *says: str) -> list[Case]:
    """Something in the place of the second report; both commands read it."""

    def write(home: Path) -> None:
        (home / "bad").mkdir()
        make(home / "bad/report.json")

    return [
        Case("report", f"{name}, {words[1]}", write, words=words, says=says, needs=("report",))
        for words in (DIFF, SHOW)
    ]


def edited(name: str, change: Callable[[dict[str, Any]], object], *says: str) -> Case:
    """A report in which something was changed."""

    def write(home: Path) -> None:
        document = json.loads((home / "report/report.json").read_text())
        change(document)
        (home / "bad").mkdir()
        (home / "bad/report.json").write_text(json.dumps(document))

    return Case("report", name, write, words=DIFF, says=("bad/report.json", *says),
                needs=("report",))  # fmt: skip


def sized(size: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.write_text("{")
        os.truncate(path, size)

    return make


FILES = [
    *file("no file", lambda path: None, "no such file"),
    *file("empty", lambda path: path.write_bytes(b""), "no JSON"),
    *file("text", lambda path: path.write_text("PASS"), "no JSON"),
    *file("no UTF-8", lambda path: path.write_bytes(b"\xff\xfe{}"), "no JSON"),
    *file("a pickle", lambda path: path.write_bytes(pickle.dumps(Payload())), "no JSON"),
    *file("brackets", lambda path: path.write_text("[" * 10**6), "no JSON"),
    *file("nested objects", lambda path: path.write_text('{"format":' * 10**5), "no JSON"),
    *file("a list", lambda path: path.write_text("[]"), "no parity report"),
    *file("null", lambda path: path.write_text("null"), "no parity report"),
    *file("an empty object", lambda path: path.write_text("{}"), "no parity report"),
    *file("NaN", lambda path: path.write_text('{"format": NaN}'), "no JSON"),
    *file("a number of 10,000 digits", lambda path: path.write_text(
        '{"format": ' + "9" * 10_000 + "}"), "no JSON"),
    *file("a folder", Path.mkdir, "not a file"),
    *file("a device", lambda path: path.symlink_to("/dev/zero"), "not a file"),
    *file("a pipe", os.mkfifo, "not a file"),
    *file("a link in a circle", linked_loop),
    *file("4 GiB", sized(4 << 30), "bytes"),
]  # fmt: skip

MISSING = [
    edited(f"without {part}", lambda made, part=part: made.pop(part)) for part in PARTS
]  # fmt: skip

OTHER = [
    edited(f"{part} is {name}", lambda made, part=part, value=value: made.update({part: value}))
    for part in PARTS
    if part not in ("facts", "environment", "name", "partial")
    for name, value in {"null": None, "a number": 7, "a list of lists": [[[]]],
                        "an object": {"a": {}}}.items()
    if not (part == "coverage" and name == "an object")
]  # fmt: skip

VALUES = [
    edited("a format of 10**30", lambda made: made.update(format=10**30), "this version"),
    edited("an unknown part", lambda made: made.update(extra=1), "'extra' is unknown"),
    edited("an unknown part with an escape sequence", lambda made: made.update({"\x1b[2J": 1})),
    edited("an unknown part of 100 KB", lambda made: made.update({"n" * 100_000: 1}), "unknown"),
    edited("a row less", lambda made: made["rows"].pop(), "reasons for"),
    edited("a row that is empty", lambda made: made["rows"].__setitem__(0, []), "values for"),
    edited("a row with a value more", lambda made: made["rows"][0].append(1), "values for"),
    edited("columns in another order", lambda made: made["columns"].reverse(), "columns"),
    edited("a verdict that is not that of its rows", lambda made: made.update(verdict="FAIL"),
           "was it edited"),
    edited("a verdict that is none", lambda made: made.update(verdict="FINE"), "one of PASS"),
    edited("a verdict of 100 KB", lambda made: made.update(verdict="n" * 100_000), "one of PASS"),
    edited("rows of another verdict", lambda made: [row.__setitem__(
        made["columns"].index("verdict"), "FAIL") for row in made["rows"]], "was it edited"),
    edited("a fault without rows", lambda made: made.update(faults=[{}]), "missing"),
    edited("coverage without counts", lambda made: made.update(coverage={}), "missing"),
    edited("coverage that is incomplete", lambda made: made["coverage"].update(unmatched=["x"]),
           "coverage"),
    *(edited(f"a call {value!r:.20}", lambda made, value=value: made["rows"][0].__setitem__(
        5, value), "rows[0].call") for value in (-1, 0.5, "0", None, True, [0])),
    *(edited(f"an error {value!r:.20}", lambda made, value=value: made["rows"][0].__setitem__(
        9, value), "rows[0].mae") for value in ("0.5", True, [], {}, 10**400, "nan")),
    *(edited(f"a shape {value!r:.20}", lambda made, value=value: made["rows"][0].__setitem__(
        7, value), "rows[0].shape") for value in ("-1", "2x", "axb", 3, None, "²")),
    edited("a shape of 100,000 digits", lambda made: made["rows"][0].__setitem__(7, "9" * 100_000),
           "rows[0].shape"),
]  # fmt: skip

WORDS = [
    Case("report", " ".join(words), words=("parity", *words), says=says, needs=("report",))
    for words, says in (
        (("diff", "report", "gone"), ("gone: no such file",)),
        (("diff", "gone", "report"), ("gone: no such file",)),
        (("diff", "report"), ("AFTER",)),
        (("diff", "report", "report", "--fail-if-worse", "0x"), ("factor of at least 1",)),
        (("diff", "report", "report", "--fail-if-worse", "-2"), ("factor of at least 1",)),
        (("diff", "report", "report", "--fail-if-worse", "nan"), ("factor of at least 1",)),
        (("diff", "report", "report", "--fail-if-worse", "inf"), ("factor of at least 1",)),
        (("diff", "report", "report", "--fail-if-worse", "1e999"), ("factor of at least 1",)),
        (("show", ""), ("report.json",)),
        (("show", "a\nb"), ("no such file",)),
        (("show", "\x1b[2J"), ("no such file",)),
        (("show", "x" * 500), ("cannot be read",)),
        (("show", "report", "--depth", "-1"), ("--depth",)),
        (("show", "report", "--only", "nothing*"), ("nothing*",)),
    )
] + [
    Case("report", "the same report twice", words=("parity", "diff", "report", "report",
         "--fail-if-worse", "1x"), wanted=0, needs=("report",)),
    Case("report", "--depth of 10**30", words=("parity", "show", "report", "--depth", str(10**30)),
         wanted=0, needs=("report",)),
]  # fmt: skip

CASES = [*FILES, *MISSING, *OTHER, *VALUES, *WORDS]
