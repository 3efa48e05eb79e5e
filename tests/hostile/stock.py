"""What is good in the first place: a tiny checkpoint, clips, a latent, a report, a trace."""

import sys
from pathlib import Path

import diffusers
import imageio.v3 as imageio
import numpy as np
import torch
from safetensors.numpy import save_file

from tests.hostile.models import linear_pair

CONFIG = {
    "block_out_channels": (4,),
    "down_block_types": ("CogVideoXDownBlock3D",),
    "up_block_types": ("CogVideoXUpBlock3D",),
    "norm_num_groups": 1,
    "layers_per_block": 1,
    "latent_channels": 1,
    "temporal_compression_ratio": 1,
}


def fill(folder: Path) -> Path:
    """Write `vae`, `sharded`, `clip.npy`, `clip.mp4`, `latent.safetensors`, `report`, `trace`."""
    import parity
    from parity.traces.record import record_pair

    torch.manual_seed(0)
    model = diffusers.AutoencoderKLCogVideoX(**CONFIG)
    model.save_pretrained(folder / "vae")
    model.save_pretrained(folder / "shards", max_shard_size="8KB")
    draw = np.random.default_rng(0)
    frames = np.kron(draw.integers(0, 255, (4, 4, 4, 3)), np.ones((1, 4, 4, 1))).astype(np.uint8)
    np.save(folder / "clip.npy", frames)
    imageio.imwrite(folder / "clip.mp4", frames, plugin="pyav", codec="libx264", fps=24)
    latent = draw.standard_normal((1, 1, 4, 4, 1)).astype(np.float32)
    save_file({"latent": latent}, folder / "latent.safetensors")
    made = linear_pair()
    parity.compare(made.torch_module, made.nnx_module, **made.options).write(folder / "report")
    golden = str(Path(__file__).parents[1] / "golden")
    if golden not in sys.path:
        sys.path.append(golden)
    import tiny

    record_pair(tiny.PAIR, folder / "trace", seed=3)
    return folder
