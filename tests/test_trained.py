"""The ladder on trained weights: other statistics than random ones, and video that looks like it.

`tests/data/small-vae` was made by `python -m tools.train_checkpoint`.
"""

import json
import re
from pathlib import Path

import pytest
import torch

from jaxvae.pairs.cogvideox.pair import PAIR
from parity.pipeline import run_pair
from tools import train_checkpoint as trained

FOLDER = Path(__file__).parent / "data/small-vae"

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def report():
    return run_pair(PAIR, {"weights": str(FOLDER)})


@pytest.mark.slow
def test_the_ladder_holds(report):
    """Its convolutions return values of size 16, of which a rung's limit is one rounding."""
    assert report.verdict == "PASS", report.faults
    table = report.table
    limited = table[(table.rung == "conv") & ~table.case.str.contains("mean30")]
    assert limited.ref_rms.max() > 8


@pytest.mark.slow
def test_both_sides_show_the_same_video(report):
    seen = report.facts["seen in forward/clip"]
    found = {name: (float(psnr), float(ssim)) for name, psnr, ssim in
             re.findall(r"([a-z ]+?) (inf|[\d.]+) dB, SSIM ([\d.]+)", seen)}  # fmt: skip
    assert list(found) == ["reference", " port", " one against the other"]
    (psnr, ssim), port, other = found.values()
    assert psnr > 22  # 21.3 is the mean colour alone, of another window
    assert ssim > 0.5
    assert port == pytest.approx((psnr, ssim), abs=2e-3)
    assert other[0] > 80
    assert other[1] == 1


def test_it_is_small_and_says_what_it_is():
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) == {"README.md", "config.json", "diffusion_pytorch_model.safetensors"}
    assert sum(files.values()) < 4e6
    assert json.loads((FOLDER / "config.json").read_text())["latent_channels"] == 8
    card = (FOLDER / "README.md").read_text()
    assert "PSNR" in card
    assert "python -m tools.train_checkpoint" in card


def test_it_shows_more_than_the_mean_colour():
    """On frames of the shortest clip that it has not seen."""
    vae = trained.AutoencoderKLCogVideoX.from_pretrained(FOLDER).eval()
    wanted = trained.tested(trained.read("carphone_pristine"))
    with torch.no_grad():
        found = trained.psnr(vae(wanted).sample, wanted)
    colour = wanted.mean(dim=(2, 3, 4), keepdim=True).expand_as(wanted)
    assert found > trained.psnr(colour, wanted) + 5
