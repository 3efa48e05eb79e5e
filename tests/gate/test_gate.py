"""The gate can fail: known mistakes are found, and named where they are."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from parity.capture.nnx import submodules
from parity.host.progress import Progress
from parity.options.options import Options
from parity.run.case import run_case
from parity.run.running_port import RunningPort
from parity.run.running_reference import RunningReference
from tests.commands import parity
from tests.docs.documents import blocks, difference

HERE = Path(__file__).parent


@pytest.mark.slow
def test_the_mistaken_time_pooling_is_named_and_all_before_it_passes(tmp_path):
    """The mistake of an earlier port, which called the encoder's error of 0.6 production ready."""
    words = ["run", "mutants:POOLING", "--config", "small", "--size", "32x32", "--out", tmp_path]
    done = parity(*words, cwd=HERE)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    page = (tmp_path / "report.html").read_text()
    assert page.count('id="fault-') == 2  # a card and its title
    assert "Where in the array the error lies" in page
    table = pd.read_csv(tmp_path / "layers.csv", keep_default_na=False, na_values=[""])
    table = table.fillna({"path": "", "leaf": ""})
    shown = done.stdout.splitlines()
    (at,) = [i for i, line in enumerate(shown) if line.startswith("fault")]  # two of one mistake
    assert shown[at] == "fault: reshape_order"
    where, alike, _, why = shown[at + 1 : at + 5]
    named = [where.split()[1], *alike.split()[1:]]
    assert named == [f"encoder.down_blocks.{i}.downsamplers.0" for i in (0, 1)]
    assert "between its own input and the input of conv" in where
    assert " of the channel-last array instead of " in why
    first = table.index[table.path == named[0]][0]
    assert set(table.loc[: first - 1, "verdict"]) == {"PASS"}
    assert table.loc[first, "incl_mae"] > 1e-2
    # what the earlier port reported as its encoder's error
    encoder = table[table.path == "encoder"].iloc[0]
    assert encoder.grade in ("attention", "severe")


@pytest.mark.slow
def test_the_ladder_s_page_shows_what_is_printed(tmp_path):
    words = ["run", "mutants:POOLING", "--config", "small", "--out", tmp_path]
    done = parity(*words, cwd=HERE)
    shown = next(
        one.text for one in blocks("docs/ladder.md") if one.text.startswith("fault: reshape_order")
    )
    assert not difference(shown, done.stdout)


@pytest.fixture(scope="module")
def drawn(small_torch):
    """Twenty modules that compute something, drawn by seed, of every kind that there is."""
    draw = random.Random(20)
    runs = [
        path
        for path, module in small_torch.named_modules()
        if path and not isinstance(module, (torch.nn.ModuleList, torch.nn.Dropout))
    ]
    return draw.sample(runs, 20)


@pytest.mark.parametrize(
    "which", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 20))]
)
def test_a_module_scaled_by_one_percent_is_named(which, drawn, small_torch, small_nnx):
    from mutants import scale_output

    from jaxvae.pairs import port, reference
    from jaxvae.pairs.cogvideox import ladder, pair
    from parity.core.pair import Case

    path = drawn[which]
    rng = np.random.default_rng(which)
    half = path.split(".")[0]
    shape = (1, 3, 5, 16, 16) if half == "encoder" else (1, 8, 3, 4, 4)
    theirs, ours = {
        "encoder": (reference.encode_torch, port.encode_nnx),
        "decoder": (reference.decode_torch, port.decode_nnx),
    }[half]
    sample = rng.standard_normal(shape).astype(np.float32)
    case = Case(half, (sample,), torch=theirs, nnx=ours)
    options = Options(ladder.RUNGS, ladder.DECLARED, {}, pair.PAIR.layout)
    undo = scale_output(small_nnx, path, 1.01)
    try:
        outcome = run_case(
            case, RunningReference(small_torch), RunningPort(small_nnx), options, (), Progress()
        )
    finally:
        undo()
    assert [(fault.path, fault.cause) for fault in outcome.faults] == [(path, "scale_or_offset")]
    assert set(submodules(small_nnx)) >= {path}
