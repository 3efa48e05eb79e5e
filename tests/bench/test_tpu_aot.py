"""What is compiled for a TPU, what of an earlier run is kept, and what the tables say."""

import json

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bench.tpu_aot import CALLS, Call, Program, compile_program, load, markdown, peak, wanted
from jaxvae.pairs.cogvideox.ladder import SMALL

GIB = 2**30
SHORT = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries"
    " (45.10G) exceeds available HBM (31.25G)."
)


def figures(**changes):
    figures = dict.fromkeys(("arguments", "output", "aliased", "temporary", "code"), 0)
    return {"digest": "", "flops": 1e12} | figures | changes


def test_programs_of_a_call():
    first = Program("decode", True, 3, 480, 720)
    following = Program("decode", False, 2, 480, 720)
    assert Call("decode", 13, 480, 720).programs() == [first] + [following] * 5
    whole = Call("decode", 13, 480, 720, whole=True)
    assert whole.programs() == [Program("decode", True, 13, 480, 720)]
    # fewer frames than a chunk has
    assert Call("encode", 4, 8, 8).programs() == [Program("encode", True, 4, 8, 8)]
    assert [Call("decode", frames, 8, 8).video_frames for frames in (1, 2, 3, 13)] == [1, 8, 9, 49]


def test_every_program_is_compiled_once():
    programs = wanted(CALLS)
    assert len(set(programs)) == len(programs)
    assert set(programs) == {program for call in CALLS for program in call.programs()}
    assert len({program.name for program in programs}) == len(programs)


def test_peak_is_the_chunk_that_needs_most_and_what_lies_beside_it():
    call = Call("decode", 13, 480, 720)
    first, following = dict.fromkeys(call.programs())
    programs = {
        first.name: figures(arguments=5, output=7, temporary=100),
        following.name: figures(arguments=20, output=30, aliased=10, temporary=80, code=1),
    }
    # latent: 13 frames, 16 channels of 60x90; video: 49 frames, 3 channels; 2 bytes each
    beside = 2 * (13 * 16 * 60 * 90 + 49 * 3 * 480 * 720)
    assert call.array_bytes() == beside
    assert peak(call, programs) == 20 + 30 - 10 + 80 + 1 + beside
    assert peak(call, {first.name: programs[first.name]}) is None


def test_tables_say_what_did_not_fit_and_what_is_missing():
    chunked, joined = Call("encode", 16, 8, 8), Call("encode", 16, 8, 8, whole=True)
    calls = (chunked, joined, Call("decode", 1, 8, 8))
    (first, following), (whole,) = chunked.programs(), joined.programs()
    programs = {
        first.name: figures(temporary=GIB),
        following.name: figures(temporary=3 * GIB, flops=2e12),
        whole.name: {"digest": "", "error": SHORT},
    }
    report = {"commit": "c", "versions": {"jax": "1"}, "topology": "t", "programs": programs}
    lines = markdown(report, calls).splitlines()
    assert "| encode | 16 | 8x8 | 8 + 8 | 3.0 | 3.0 |" in lines
    assert "| encode, one chunk | 16 | 8x8 | 16 | does not fit: 45.1 of 31.2 |  |" in lines
    assert "| decode | 1 | 8x8 | 1 | not compiled |  |" in lines
    assert f"| {following.name} | 0.00 | 0.00 | 0.00 | 3.00 | 0.00 | 2.0 |" in lines


def test_what_another_compiler_said_is_not_kept(tmp_path):
    path = tmp_path / "tpu_aot.json"
    assert load(path, {"jax": "1"}) == {}
    path.write_text(json.dumps({"versions": {"jax": "1"}, "programs": {"p": figures()}}))
    assert load(path, {"jax": "1"}) == {"p": figures()}
    assert load(path, {"jax": "2"}) == {}


@pytest.fixture
def no_cache():
    """As in a process that the command starts."""
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    compilation_cache.reset_cache()  # it remembers whether it is used
    yield
    jax.config.update(name, before)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_a_program_is_compiled_and_then_known(monkeypatch, no_cache):
    pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    program = Program("decode", False, 2, 16, 16)
    found = compile_program(program, None, SMALL)
    assert found["output"] > 0
    assert found["flops"] > 0
    assert compile_program(program, found, SMALL) is found
    assert compile_program(program, found | {"digest": "another"}, SMALL) == found
