import numpy as np
import pytest
import torch

from parity.capture.recorder import Subtree
from parity.capture.torch import modules, record


def run(module, *args, method="__call__", layout=None, store=None, **options):
    return record(module, method, args, {}, store=store, layout=layout or {}, **options)


def test_every_call_in_order_of_completion(pair, image, store):
    calls = run(pair[0], image, store=store).calls
    block = ["norm", "act", "conv", ""]
    expected = ["stem"]
    for path in ("block", "block", "blocks.0"):
        expected += [f"{path}.{name}".rstrip(".") for name in block]
    assert [call.path for call in calls] == [*expected, "head", ""]
    assert [call.order for call in calls] == list(range(len(calls)))
    assert [call.number for call in calls if call.path == "block"] == [0, 1]
    by_order = {call.order: call for call in calls}
    assert {by_order[c.parent].path for c in calls if c.path == "block.conv"} == {"block"}
    assert calls[-1].parent == -1


def test_arrays_are_copied_when_they_are_seen(pair, image, store):
    reference = pair[0]
    calls = {(c.path, c.number): c for c in run(reference, image, store=store).calls}
    with torch.no_grad():
        stem = reference.stem(torch.from_numpy(image))
        normed = reference.block.norm(stem)
        relu = torch.relu(normed)
        conv = reference.block.conv(relu)

    def output(path):
        return np.moveaxis(store.get(calls[path, 0].outputs[-1].buffer), -1, 1)

    # ReLU wrote into the norm's output, and += into the convolution's.
    np.testing.assert_array_equal(output("block.norm"), normed)
    np.testing.assert_array_equal(output("block.act"), relu)
    np.testing.assert_array_equal(output("block.conv"), conv)


def test_layout_is_applied_and_remembered(pair, image, store):
    calls = {call.path: call for call in run(pair[0], image, store=store).calls}
    (leaf,) = calls["stem"].inputs
    assert (leaf.name, leaf.buffer.shape, leaf.moved) == ("input", (2, 7, 9, 3), True)
    assert calls["head"].inputs[0].buffer.shape == (2, 8)
    assert not calls["head"].inputs[0].moved
    names = {leaf.name: leaf for leaf in calls["block"].outputs}
    assert set(names) == {"0", "1.mean", "1.none"}
    assert names["1.none"].buffer is None


def test_a_block_is_as_sure_as_the_convolution_that_reads_the_same_bytes(pair, image, store):
    calls = {call.path: call for call in run(pair[0], image, store=store).calls}
    assert calls["block"].inputs[0].sure  # `block.norm` read these very bytes
    assert not next(leaf for leaf in calls["blocks.0"].outputs if leaf.name == "0").sure


def test_hooks_are_removed_even_after_an_error(pair, store):
    with pytest.raises(RuntimeError):
        run(pair[0], np.zeros((2, 4, 7, 9), np.float32), store=store)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in pair[0].modules())


def test_a_method_gets_a_root_row(pair, image, store):
    calls = run(pair[0], image, method="features", store=store).calls
    assert (calls[-1].path, calls[-1].method) == ("", "features")
    assert calls[-1].inputs[0].name == "x"
    assert {call.path for call in calls} == {"stem", "block", "block.norm", "block.act",
                                             "block.conv", ""}  # fmt: skip


def test_the_module_alone(pair, image, store):
    trace = run(pair[0].stem, image, store=store, subtree=Subtree("stem", ()))
    assert [call.path for call in trace.calls] == ["stem"]
    assert set(trace.modules) == {"stem"}


def test_no_gradients_and_inputs_untouched(image, store):
    given = image.copy()
    run(torch.nn.ReLU(inplace=True), given, store=store)
    np.testing.assert_array_equal(given, image)


def test_modules_tell_containers(pair):
    found = modules(pair[0])
    assert [path for path, info in found.items() if info.container] == ["blocks"]
    assert found["stem"].parameters == {"weight": 216, "bias": 8}
    assert set(found) == {path for path, _ in pair[0].named_modules()}
