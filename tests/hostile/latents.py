"""Latents for `jaxvae decode`, and weights that are not finite for every command."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.hostile.case import Case
from tests.hostile.checkpoints import FILE, FIRST, Payload, linked_loop

GOOD = np.zeros((1, 1, 4, 4, 1), np.float32)
WORDS = ("jaxvae", "decode", "bad.safetensors", "out.npy", "--weights", "vae", "--quiet")


def file(name: str, make: Callable[[Path], object], *says: str) -> Case:
    """Something in the place of a latent."""
    return Case("latent", name, lambda home: make(home / "bad.safetensors"), words=WORDS,
                says=("bad.safetensors", *says), needs=("vae",))  # fmt: skip


def latent(name: str, value: Any, *says: str, key: str = "latent", **about: str) -> Case:
    """A latent that is well formed."""
    return file(name, lambda path: save_file({key: value}, path, about or None), *says)


def weights(name: str, value: float, *words: str) -> Case:
    """A checkpoint with a value that is none."""

    def make(home: Path) -> None:
        made = load_file(home / "vae" / FILE)
        made[FIRST] = np.full_like(made[FIRST], value)
        save_file(made, home / "vae" / FILE)

    return Case("latent", f"{name}, {' '.join(words[:2])}", make, words=words,
                says=("not finite", FIRST),
                needs=("vae", "clip.npy", "latent.safetensors"))  # fmt: skip


SHAPES = [
    latent(f"shape {shape}", np.zeros(shape, np.float32), "has shape", "(1, frames, height, width")
    for shape in ((), (1,), (4, 4, 1), (1, 1, 4, 4), (2, 1, 4, 4, 1), (1, 1, 4, 4, 2), (0,),
                  (1, 0, 4, 4, 1), (1, 1, 0, 4, 1), (1, 1, 4, 4, 0), (1, 1, 1, 4, 4, 1),
                  (0, 1, 4, 4, 1), (1, 1, 4, 4, 1000))
]  # fmt: skip

TYPES = [
    latent(f"of {dtype}", GOOD.astype(dtype), f"`latent` holds {dtype} values")
    for dtype in ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "complex64")
]

VALUES = [
    latent(f"of {value}", np.full_like(GOOD, value), "no finite numbers")
    for value in (np.nan, np.inf, -np.inf)
] + [
    latent("too large for float32", np.full(GOOD.shape, 1e300), "no finite numbers"),
]

ABOUT = [
    latent(f"rate {rate!r:.30}", GOOD, "rate", rate=rate)
    for rate in ("0", "-3", "x", "1/0", "nan", "inf", "", "1e9", "9" * 10_000, "\x1b[2J", "a\nb")
]

NAMES = [
    latent(f"named {key!r:.30}", GOOD, "expected an array `latent` or `mean`", key=key)
    for key in ("", "Latent", "logvar", "x" * 10_000, "\x1b[2J", "a\nb")
] + [
    file("a thousand other names", lambda path: save_file(
        {f"x{i}": np.zeros(1, np.float32) for i in range(1000)}, path), "expected an array"),
]  # fmt: skip

FILES = [
    file("no file", lambda path: None, "not a readable safetensors file"),
    file("empty", lambda path: path.write_bytes(b"")),
    file("text", lambda path: path.write_text("latent")),
    file("a pickle", lambda path: path.write_bytes(pickle.dumps(Payload()))),
    file("a huge header", lambda path: path.write_bytes(b"\xff" * 64)),
    file("a folder", Path.mkdir),
    file("a pipe", os.mkfifo, "not a file"),
    file("a device", lambda path: path.symlink_to("/dev/zero"), "not a file"),
    file("a link in a circle", linked_loop),
]

WEIGHTS = [
    weights("weights of NaN", float("nan"), "jaxvae", "decode", "latent.safetensors", "out.npy",
            "--weights", "vae"),
    weights("weights of inf", float("inf"), "jaxvae", "encode", "clip.npy", "out.safetensors",
            "--weights", "vae"),
    weights("weights of NaN", float("nan"), "jaxvae", "reconstruct", "clip.npy", "out.npy",
            "--weights", "vae"),
    weights("weights of NaN", float("nan"), "parity", "run", "cogvideox",
            "--weights", "vae", "--frames", "1", "--size", "8x8", "--quiet", "--out", "out"),
]  # fmt: skip

CASES = [*SHAPES, *TYPES, *VALUES, *ABOUT, *NAMES, *FILES, *WEIGHTS]
