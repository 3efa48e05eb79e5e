"""Recording: each array once, and no trace where the recording was killed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file

from parity.core.exceptions import InputError
from parity.core.plain import decode, decode_value, encode, encode_value
from parity.core.tree import flatten, rebuild
from parity.traces import index
from parity.traces.arrays import FOLDER
from parity.traces.check import check_trace
from parity.traces.record import record_pair

ASKED = {"seed": 3}


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
        record_pair(killed_after(1), tmp_path, **ASKED)
    with pytest.raises(InputError, match="no such file; give the folder that `parity record`"):
        check_trace(tmp_path, tiny.PAIR)
    assert files_of(tmp_path) < files_of(recorded)
    written = record_pair(tiny.PAIR, tmp_path, **ASKED)
    assert written.cases == 4
    assert written.nbytes == sum(
        array.nbytes for path in (tmp_path / FOLDER).iterdir() for array in load_file(path).values()
    )
    assert files_of(tmp_path) == files_of(recorded)
    check_trace(tmp_path, tiny.PAIR)


def test_a_trace_is_not_overwritten(trace):
    before = (trace / index.NAME).read_bytes()
    with pytest.raises(InputError, match="has a trace; choose another --out, or remove it"):
        record_pair(tiny.PAIR, trace, **ASKED)
    assert (trace / index.NAME).read_bytes() == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be made .*; choose another --out"):
        record_pair(tiny.PAIR, tmp_path / "file" / "trace", **ASKED)


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
