"""Recording: each array once, and no trace where the recording was killed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file

import parity
from parity.core.exceptions import InputError
from parity.core.files import alone_in
from parity.core.plain import decode, decode_value, encode, encode_value
from parity.core.tree import flatten, rebuild
from parity.traces import arrays, index
from parity.traces.arrays import FOLDER
from parity.traces.check import check_trace
from parity.traces.methods import check_words, name_of
from parity.traces.record import record_pair
from parity.traces.trace import open_trace


def files_of(folder):
    return {path.name for path in (folder / FOLDER).iterdir()}


def test_each_array_has_one_file(recorded):
    named = {buffer.digest.hex(): buffer for buffer in index.read_index(recorded).buffers}
    assert files_of(recorded) == {f"{name}.safetensors" for name in named}
    held = {name: load_file(recorded / FOLDER / f"{name}.safetensors")["array"] for name in named}
    assert all(held[name].dtype == buffer.dtype for name, buffer in named.items())
    assert {path.name for path in recorded.iterdir()} == {FOLDER, index.NAME}


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

    return replace(tiny.PAIR, make_torch=make_torch)


def test_a_killed_recording_has_left_no_trace_and_is_made_again(tmp_path, recorded):
    with pytest.raises(Killed):
        record_pair(killed_after(1), tmp_path, **tiny.ASKED)
    with pytest.raises(InputError, match="no such file; give the folder that `parity record`"):
        check_trace(tmp_path, tiny.PAIR)
    assert files_of(tmp_path) < files_of(recorded)
    written = record_pair(tiny.PAIR, tmp_path, **tiny.ASKED)
    assert written.cases == 4
    assert written.nbytes == sum(
        array.nbytes for path in (tmp_path / FOLDER).iterdir() for array in load_file(path).values()
    )
    assert files_of(tmp_path) == files_of(recorded)
    check_trace(tmp_path, tiny.PAIR)


def test_a_trace_is_not_overwritten(trace):
    before = (trace / index.NAME).read_bytes()
    with pytest.raises(InputError, match="has a trace; choose another --out, or remove it"):
        record_pair(tiny.PAIR, trace, **tiny.ASKED)
    assert (trace / index.NAME).read_bytes() == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be made .*; choose another --out"):
        record_pair(tiny.PAIR, tmp_path / "file" / "trace", **tiny.ASKED)


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


def test_two_recordings_into_one_folder(tmp_path):
    with alone_in(tmp_path), pytest.raises(InputError, match="another process writes there"):
        record_pair(tiny.PAIR, tmp_path, **tiny.ASKED)
    assert not list(tmp_path.iterdir())


def test_an_array_is_hashed_once_unless_its_file_changes(recorded, monkeypatch):
    golden, digests = open_trace(recorded), []
    digest = arrays.digest
    monkeypatch.setattr(arrays, "digest", lambda array: digests.append(1) or digest(array))
    buffer = next(golden.index.buffers)
    golden.arrays.read(buffer)
    assert not digests
    golden.arrays.path(buffer).touch()
    golden.arrays.read(buffer)
    assert len(digests) == 1


def test_a_string_that_the_pair_lists_is_recorded(tmp_path):
    case = parity.Case("x", (np.ones((1, 3, 4, 4), "f4"),), kwargs={"mode": "same"})
    with pytest.raises(InputError, match=r"'same' to the port: name it in Offline\.words"):
        check_words(flatten((case.args, dict(case.kwargs))).skeleton, tiny.PAIR)
    listed = replace(tiny.PAIR, offline=replace(tiny.PAIR.offline, words=("same", b"x")))
    check_words(flatten((case.args, {"mode": "same", "a": [b"x", 1, None]})).skeleton, listed)
    with pytest.raises(InputError, match=r"passes b'y' .* which has 'same', b'x'"):
        check_words(flatten(((), {"a": (b"y",)})).skeleton, listed)


def test_a_method_that_the_pair_lists_by_name():
    listed = replace(tiny.PAIR, offline=replace(tiny.PAIR.offline, methods=("encode",)))
    assert (name_of("encode", listed), name_of("__call__", listed)) == ("encode", "__call__")
    with pytest.raises(InputError, match=r"'encode' on the port: name it in Offline\.methods"):
        name_of("encode", tiny.PAIR)
