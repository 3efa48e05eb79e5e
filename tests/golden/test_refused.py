"""A trace that is not what was recorded is refused, with the reason."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
from broken import case, refused
from safetensors.numpy import save_file

import parity
from parity.traces import index
from parity.traces.arrays import ArrayFolder
from parity.traces.check import check_trace
from parity.traces.record import record_pair


def array_of(folder):
    """The file of the first array that the trace has."""
    return next(ArrayFolder(folder).path(x) for x in index.read_index(folder).buffers)


def edited(**changes):
    def spoil(folder, resign):
        path = folder / index.NAME
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def truncated(folder, resign):
    path = array_of(folder)
    path.write_bytes(path.read_bytes()[:-4])


def changed(folder, resign):
    path = array_of(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def another_array(folder, resign):
    save_file({"array": np.zeros(3)}, array_of(folder))


def under_another_name(folder, resign):
    save_file({"other": np.zeros(3)}, array_of(folder))


def signed(path, value):
    return lambda folder, resign: resign(folder, case(path, value))


def all_of_another_type(folder, resign):
    def change(content):
        form = content["cases"][0]["given"][0]
        half = json.dumps({**form, "dtype": "float16"})
        content.update(json.loads(json.dumps(content).replace(json.dumps(form), half)))

    resign(folder, change)


def no_calls(folder, resign):
    resign(folder, lambda content: content["cases"][0].pop("calls"))


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (lambda folder, resign: (folder / index.NAME).unlink(), ["give the folder that"]),
        (lambda folder, resign: (folder / index.NAME).write_text("{"), ["no JSON"]),
        (lambda folder, resign: (folder / index.NAME).write_text("[]"), ["no index of a gold"]),
        (edited(format=99), ["format 99, this version reads 5", "record it again"]),
        (edited(seed=4, facts={}), ["changed since it was recorded"]),
        (lambda folder, resign: array_of(folder).unlink(), [".safetensors", "no such file"]),
        (truncated, [".safetensors: truncated or changed"]),
        (changed, [".safetensors: its content is not the float32[8, 3, 3, 3] that was recorded"]),
        (another_array, [".safetensors: its content is not the float32[8, 3, 3, 3]"]),
        (under_another_name, [".safetensors: truncated or changed"]),
        (signed(("given", 0, "shape"), [2, 7, 9, 3, 2]),
         ["its content is not the float32[2, 7, 9, 3, 2]"]),
        (all_of_another_type, ["its content is not the float16[2, 7, 9, 3]"]),
        (signed(("calls", -1, "outputs", 0, "buffer", "digest"), "00" * 16),
         ["000.safetensors: the index names it, and there is no such file"]),
        (no_calls, ["cases[0]: 'calls' is missing; was it written by another version?"]),
        (signed(("shipped",), "function:os.system"),
         ["calls 'os.system' on the port", "forward, jitted"]),
    ],
)  # fmt: skip
def test_it_is_refused(trace, resign, spoil, parts):
    spoil(trace, resign)
    with refused(*parts):
        check_trace(trace, tiny.PAIR)


@pytest.mark.parametrize(
    ("pair", "part"),
    [
        (tiny.OTHER, "a trace of pair 'tiny', not of 'other'; use --pair"),
        (replace(tiny.PAIR, offline=None), "give it offline=parity.Offline(...)"),
        (replace(tiny.PAIR, layout={"*": "channels_first"}), "recorded with layout {}, the"),
    ],
)
def test_another_pair_is_refused(recorded, pair, part):
    with refused(part):
        check_trace(recorded, pair)


@pytest.mark.parametrize(
    ("pair", "options", "part"),
    [
        (replace(tiny.PAIR, offline=None), {}, "give it offline=parity.Offline(...)"),
        (
            replace(tiny.PAIR, offline=replace(tiny.PAIR.offline, methods=(tiny.forward,))),
            {},
            "calls 'jitted' on the port: name it in Offline.methods, which has __call__, forward",
        ),
        (tiny.PAIR, {"only": ["blocks*"]}, "only: 'blocks*' matches no module of the reference"),
        (tiny.PAIR, {"only": "block"}, "only: expected a sequence"),
        (
            replace(
                tiny.PAIR,
                cases=lambda *_: (parity.Case("x", (np.ones((1, 3, 4, 4), "f4"), {1})),),
            ),
            {},
            "an argument holds a set: a golden trace has arrays, plain values",
        ),
    ],
)
def test_what_could_not_be_checked_is_not_recorded(tmp_path, pair, options, part):
    with refused(part):
        record_pair(pair, tmp_path, **options)
