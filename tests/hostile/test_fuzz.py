"""Readers on random input: it is read, or refused with one line that names the file."""

import io
import json
import struct
from dataclasses import fields

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import save

import jaxvae
from jaxvae.io.diffusers_folder import INDEX_NAME, WEIGHTS_NAME, open_weights
from jaxvae.io.video import find_video
from jaxvae.pairs.inputs import load_clip
from parity.core.exceptions import InputError
from parity.report import Report
from parity.report.as_json import as_json
from parity.traces.index import NAME, read_index
from tests.hostile.case import REFUSALS
from tests.hostile.models import linear_pair

TRIES = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
texts = values.map(json.dumps).map(str.encode)
junk = st.binary(max_size=200) | texts


def read_or_refuse(read, path, data=None):
    """What is read, of these bytes if there are some; None where it was refused as it must be."""
    if data is not None:
        path.write_bytes(data)
    try:
        return read(path)
    except REFUSALS as error:
        message = str(error)
        assert message.startswith(str(path.parent)), message
        assert len(message.splitlines()) == 1, message
        assert message.isprintable(), message
        assert len(message) < 1500, message
        return None


@st.composite
def damaged(draw, good):
    """Good bytes of which some are others, missing, or twice."""
    data = bytearray(draw(good) if isinstance(good, st.SearchStrategy) else good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("flip", "cut", "insert", "repeat"))):
            case "flip" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 50))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=20))
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 50))]
    return bytes(data)


SAFE = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(4, np.int8)})
(LENGTH,) = struct.unpack("<Q", SAFE[:8])
headers = values.map(json.dumps).map(
    lambda text: struct.pack("<Q", len(text)) + text.encode() + SAFE[8 + LENGTH :]
)


@given(data=damaged(SAFE) | junk | headers)
@TRIES
def test_safetensors(data, tmp_path):
    def read(path):
        tensors = open_weights(path.parent)
        return {name: tensors[name] for name in tensors}

    for name, array in (read_or_refuse(read, tmp_path / WEIGHTS_NAME, data) or {}).items():
        assert isinstance(name, str)
        assert array.nbytes <= len(data)


@given(made=values | st.fixed_dictionaries({"weight_map": values | st.dictionaries(
    st.text(max_size=8), st.text(max_size=20) | st.just(WEIGHTS_NAME), max_size=3)}))  # fmt: skip
@TRIES
def test_indices(made, tmp_path):
    (tmp_path / WEIGHTS_NAME).write_bytes(SAFE)
    data = json.dumps(made).encode()
    found = read_or_refuse(lambda path: open_weights(path.parent), tmp_path / INDEX_NAME, data)
    if found is not None:
        assert set(made["weight_map"]) == set(found) == {"a", "b"}


CONFIGS = [getattr(jaxvae, f"{name}").config_class for name in (
    "AutoencoderKLCogVideoX", "AutoencoderKL", "AutoencoderKLWan")]  # fmt: skip
numbers = values | st.sampled_from([10**400, -(10**400), 2**63, 1e308, 5e-324, 65536, [2] * 17])


@pytest.mark.filterwarnings("ignore:.*not a field of")
@pytest.mark.parametrize("kind", CONFIGS)
@given(data=st.data())
@TRIES
def test_configurations(kind, data, tmp_path):
    names = [*(field.name for field in fields(kind)), "_class_name", "input_channels"]
    names = st.sampled_from(names) | st.just("_class_name")
    classes = st.sampled_from([kind.class_name, "AutoencoderKLQwenImage"])
    made = data.draw(st.dictionaries(names, numbers | classes, max_size=3) | values)
    config = read_or_refuse(kind.from_json, tmp_path / "config.json", json.dumps(made).encode())
    if config is not None:
        assert kind.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        sizes = config.video_frames(config.latent_frames(5)), config.spatial_ratio
        assert all(type(size) is int and 0 < size < 1 << 40 for size in sizes)


def npy():
    """The bytes of a small clip as NumPy writes them."""
    file = io.BytesIO()
    np.save(file, np.zeros((2, 4, 4, 3), np.uint8))
    return file.getvalue()


def four_by_four(path):
    return load_clip(str(path), 2, (4, 4), 0)


@given(data=damaged(npy()) | junk)
@TRIES
def test_arrays_of_frames(data, tmp_path):
    path = tmp_path / "clip.npy"
    clip = read_or_refuse(four_by_four, path, data)
    assert clip is None or np.isfinite(clip.frames).all()
    found = read_or_refuse(find_video, path)
    assert found is None or all(len(part) for part in found.parts())


@given(data=junk)
@TRIES
def test_videos(data, tmp_path):
    for read in (four_by_four, find_video):
        read_or_refuse(read, tmp_path / "clip.mp4", data)


@pytest.fixture(scope="module")
def document():
    """A report as JSON."""
    return as_json(linear_pair().report()).encode()


@given(draw=st.data())
@TRIES
def test_reports(draw, document, tmp_path):
    path = tmp_path / "report.json"
    report = read_or_refuse(Report.from_json, path, draw.draw(damaged(document) | junk))
    if report is not None:
        assert as_json(Report.from_json(path)) == as_json(report)
        report.to_html(tmp_path / "report.html")


@given(draw=st.data())
@TRIES
def test_values_in_reports(draw, document, tmp_path):
    """Any value in the place of any other: what is read can be written, whatever it is."""
    made = json.loads(document)
    parent = made
    key = draw.draw(st.sampled_from(sorted(parent)))
    while isinstance(parent[key], (dict, list)) and parent[key] and draw.draw(st.booleans()):
        parent = parent[key]
        keys = sorted(parent) if isinstance(parent, dict) else range(len(parent))
        key = draw.draw(st.sampled_from(list(keys)))
    parent[key] = draw.draw(values)
    report = read_or_refuse(Report.from_json, tmp_path / "report.json", json.dumps(made).encode())
    if report is not None:
        report.write(tmp_path / "again")


@given(data=junk)
@TRIES
def test_indices_of_traces(data, tmp_path):
    path = tmp_path / NAME
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_index(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
