"""Recording: files of bounded size, and none lost to a kill."""

import errno
import fcntl
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_torch
from safetensors.numpy import load_file

from parity.core.exceptions import InputError
from parity.core.tree import flatten, rebuild
from parity.traces import index
from parity.traces.check import check_trace
from parity.traces.lock import locked
from parity.traces.plain import decode, decode_value, encode, encode_value
from parity.traces.record import record_pair

ASKED = {"seed": 3}


def test_files_have_the_size_that_was_asked_for(recorded):
    shards = json.loads((recorded / index.NAME).read_text())
    shards = [*shards["weights"], *(x for case in shards["cases"] for x in case["shards"])]
    files = sorted(path.name for path in recorded.iterdir())
    assert files == sorted([index.NAME, *(shard["name"] for shard in shards)])
    assert len(files) > 10
    for shard in shards:
        arrays = load_file(recorded / shard["name"]).values()
        assert sum(array.nbytes for array in arrays) <= 2000 or len(arrays) == 1


class Killed(BaseException):
    pass


def killed_after(cases):
    """The pair, on whose reference the process dies once it has run so many cases."""
    ran = []

    def make_torch(*asked):
        reference = tiny.make_torch(*asked)

        def count(module, args):
            if args[0].dtype.itemsize == 4:
                ran.append(module)
                if len(ran) > cases:
                    raise Killed

        reference.register_forward_pre_hook(count)
        return reference

    return replace(tiny.PAIR, make_torch=make_torch), ran


def test_a_killed_recording_goes_on(tmp_path, recorded):
    pair, _ = killed_after(1)
    with pytest.raises(Killed):
        record_pair(pair, tmp_path, **ASKED)
    with pytest.raises(InputError, match="its recording has not ended"):
        check_trace(tmp_path, tiny.PAIR)
    (tmp_path / "00077.safetensors").write_bytes(b"left by a kill")
    (tmp_path / ".00078.safetensors.partial").write_bytes(b"too")
    pair, ran = killed_after(1)
    recording = record_pair(pair, tmp_path, **ASKED)
    assert (recording.cases, recording.kept) == (4, 1)
    assert len(ran) == 1  # the whole ran in the second case only, not in the first again
    assert not list(tmp_path.glob("*0007[78]*"))
    assert same(tmp_path, recorded)


def test_a_spoilt_file_is_recorded_again(trace, recorded):
    content = json.loads((trace / index.NAME).read_text())
    name = content["cases"][2]["shards"][0]["name"]
    (trace / name).write_bytes(b"")
    recording = record_pair(tiny.PAIR, trace, **ASKED, shard_size=2000)
    assert (recording.cases, recording.kept) == (4, 3)
    assert same(trace, recorded)
    check_trace(trace, tiny.PAIR)


def same(folder, other):
    """Whether two traces hold the same, in whichever files."""

    def held(where):
        content = json.loads((where / index.NAME).read_text())
        for part in (content, *content["cases"]):
            part.pop("shards", None)
        return {key: content[key] for key in ("request", "cases", "tensors", "state", "modules")}

    return held(folder) == held(other)


@pytest.mark.parametrize("options", [{"seed": 4}, {"only": ["block*"]}, {"depth": 1}])
def test_a_trace_of_something_else_is_not_overwritten(trace, options):
    before = (trace / index.NAME).read_bytes()
    with pytest.raises(InputError, match="has a trace of something else"):
        record_pair(tiny.PAIR, trace, **(ASKED | options))
    assert (trace / index.NAME).read_bytes() == before


class OtherNet(tiny_torch.Net):
    """As its parent, but for the file that it is written in."""


def other_net(*asked):
    reference = tiny.make_torch(*asked)
    reference.__class__ = OtherNet
    return reference


def other_cases(*asked):
    first, *others = tiny.cases(*asked)
    return (replace(first, args=tuple(2 * array for array in first.args)), *others)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        (
            "settings",
            {"offline": replace(tiny.PAIR.offline, settings=lambda reference: {"eps": 1})},
        ),
        ("cases", {"cases": other_cases}),
        ("code", {"make_torch": other_net}),
    ],
)
def test_nor_is_one_of_another_reference_gone_on_with(trace, what, change):
    """Tensors and names of cases are the same: its outputs would be taken for this one's."""
    before = (trace / index.NAME).read_bytes()
    with pytest.raises(InputError, match=rf"has a trace of something else \({what} differ\)"):
        record_pair(replace(tiny.PAIR, **change), trace, **ASKED)
    assert (trace / index.NAME).read_bytes() == before


def test_two_recordings_at_once_are_kept_apart(tmp_path):
    """Their files would have the same names."""
    with locked(tmp_path), pytest.raises(InputError, match="another recording writes to it; wait"):
        record_pair(tiny.PAIR, tmp_path, **ASKED)
    assert not list(tmp_path.iterdir())
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("fails", ["open", "flock"])
def test_a_folder_that_cannot_be_locked_is_refused(tmp_path, monkeypatch, fails):
    """Read-only, or on a file system without locks."""

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(*((Path, "open") if fails == "open" else (fcntl, "flock")), refuse)
    with pytest.raises(InputError, match=r"Read-only file system\); choose another --out"):
        record_pair(tiny.PAIR, tmp_path, **ASKED)


def test_files_of_others_stay(tmp_path):
    (tmp_path / "00000.safetensors").write_bytes(b"a model")
    with pytest.raises(InputError, match=r"has 00000.safetensors, named like .* no trace.json"):
        record_pair(tiny.PAIR, tmp_path, **ASKED)
    assert (tmp_path / "00000.safetensors").read_bytes() == b"a model"


def test_a_recording_killed_before_its_first_case_goes_on(tmp_path, recorded):
    pair, _ = killed_after(0)
    with pytest.raises(Killed):
        record_pair(pair, tmp_path, **ASKED)
    assert record_pair(tiny.PAIR, tmp_path, **ASKED).kept == 0
    assert same(tmp_path, recorded)


@pytest.mark.parametrize(
    "value", [None, True, 3, 1.5, float("inf"), float("-inf"), "text", 1 + 2j, b"bytes"]
)
def test_plain_values_come_back(value):
    back = decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False)))
    assert (type(back), back) == (type(value), value)


def test_nan_and_objects():
    assert np.isnan(decode_value(encode_value(float("nan"))))
    assert type(decode_value(encode_value(np.random.default_rng()))).__name__ == "Generator"


def test_nested_arguments_come_back():
    value = ((np.ones(2), [None, {"a": np.zeros(1), "b": (1.5, "x")}]), {})
    flat = flatten(value)
    skeleton = decode(json.loads(json.dumps(encode(flat.skeleton))))
    assert skeleton == flat.skeleton
    assert repr(rebuild(skeleton, [array for _, array in flat.arrays])) == repr(value)
