"""Configurations: wrong types, negative, zero, huge, unknown, in conflict with one another."""

import dataclasses
import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.hostile.case import Case
from tests.hostile.checkpoints import Payload, linked_loop

HUGE = 10**30


def load(home: Path) -> None:
    from jaxvae import CogVideoXVAEConfig

    CogVideoXVAEConfig.from_json(home / "config.json")


def text(name: str, content: bytes | str | Callable[[Path], object], *says: str) -> Case:
    """A file with this content, or what a function makes in its place."""

    def make(home: Path) -> None:
        path = home / "config.json"
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return Case("config", name, make, call=load, says=("config.json", *says))


def fields(name: str, *says: str, **changes: Any) -> Case:
    """A file with these fields."""
    return text(name, json.dumps(changes), *says)


def ignored(name: str, **changes: Any) -> Case:
    """A file with these fields, of which the model has none."""

    def warned(home: Path) -> None:
        from jaxvae.models.config import ConfigError

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                load(home)
            except UserWarning as warning:
                raise ConfigError(str(warning)) from None

    return replace(fields(name, **changes), call=warned, says=("not a field",))


def of_folder(name: str, *says: str, wanted: int = 2, **changes: Any) -> Case:
    """A checkpoint whose configuration has other fields than its weights."""

    def make(home: Path) -> None:
        path = home / "vae/config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def load(home: Path) -> None:
        from jaxvae import AutoencoderKLCogVideoX

        AutoencoderKLCogVideoX.from_pretrained(home / "vae")

    return Case("config", name, make, call=load, needs=("vae",), says=says, wanted=wanted)


def large(path: Path) -> None:
    path.write_text("{")
    os.truncate(path, 4 << 30)


def short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) < 30 else f"{shown[:30]}... ({len(shown)} characters)"


def absurd(model: str) -> Iterator[Case]:
    """Numbers that no float or no memory holds, in every field of a model that takes numbers."""
    import jaxvae

    kind = getattr(jaxvae, model).config_class
    for field in dataclasses.fields(kind):
        if not ("int" in str(field.type) or "float" in str(field.type)):
            continue
        for value in (10**400, -(10**310), float("nan"), float("-inf"), 10**4299):
            found = [value] if "tuple" in str(field.type) else value
            content = json.dumps({field.name: found})

            def make(home: Path, content: str = content) -> None:
                (home / "config.json").write_text(content)

            def load(home: Path, kind: Any = kind) -> None:
                kind.from_json(home / "config.json")

            name = f"{model}: {field.name} {short(found)}"
            yield Case("config", name, make, call=load, says=("config.json", field.name))


def write(home: Path, made: Any) -> None:
    (home / "config.json").write_text(json.dumps(made))


FILES = [
    text("empty", "", "expected JSON"),
    text("cut short", '{"in_channels": 3', "expected JSON"),
    text("no JSON", "in_channels: 3", "expected JSON"),
    text("no UTF-8", b"\xff\xfe{}", "expected JSON"),
    text("zeros", bytes(1000), "expected JSON"),
    text("a pickle", pickle.dumps(Payload()), "expected JSON"),
    text("brackets", "[" * 100_000, "expected JSON"),
    text("nested objects", '{"a":' * 100_000, "expected JSON"),
    text("a number of 10,000 digits", '{"in_channels": ' + "9" * 10_000 + "}", "expected JSON"),
    text("a list", "[]", "expected a JSON object, found list"),
    text("null", "null", "expected a JSON object"),
    text("a number", "3", "expected a JSON object"),
    text("a string", '"x"', "expected a JSON object"),
    text("a folder", Path.mkdir, "not a file"),
    text("a link to nothing", lambda path: path.symlink_to("gone"), "cannot be read"),
    text("a link in a circle", linked_loop, "cannot be read"),
    text("4 GiB", large, "bytes"),
    text("a device", lambda path: path.symlink_to("/dev/zero"), "not a file"),
    text("a pipe", os.mkfifo, "not a file"),
    text("a key twice", '{"in_channels": 3, "in_channels": 4}', "in_channels", "twice"),
    text("no file", lambda path: None, "cannot be read"),
    text(
        "seventy thousand keys, the last twice",
        json.dumps({f"k{i}": 0 for i in range(70_000)})[:-1] + ', "k69999": 0}',
        "twice",
    ),
]

COUNTS = [
    fields(f"{name} {short(value)}", name, "positive integer", **{name: value})
    for name, values in {
        "in_channels": (0, -1, 3.0, "3", None, True, [3], {}, float("nan")),
        "out_channels": (0, -3, "rgb", 2.5),
        "latent_channels": (0, -16, None),
        "layers_per_block": (0, -1, 1.5, "2"),
        "norm_num_groups": (0, -32, 0.5, None),
        "sample_height": (0, -480, "480p", None),
        "sample_width": (0, -1, [720]),
    }.items()
    for value in values
]

NUMBERS = [
    fields(f"{name} {short(value)}", name, **{name: value})
    for name, values in {
        "norm_eps": (0, -1e-6, None, "1e-6", float("nan"), float("inf"), True, [1e-6], -0.0),
        "temporal_compression_ratio": (0, 0.5, -4, None, "4", float("nan"), float("inf"), 1e300),
        "scaling_factor": (None, "1.15", float("nan"), float("inf"), float("-inf"), 0, [1.0], True),
        "shift_factor": ("0", float("nan"), float("-inf"), [0.0], True),
        "latents_mean": ("0", [None], ["a"], [[0.0]], 0.5, [float("nan")]),
        "latents_std": ("1", [None], {"0": 1}, 1.0, [0.0], [float("inf")], [-1.0]),
        "force_upcast": ("yes", None, [True]),
        "use_quant_conv": (1, "true", None, 0.0),
        "use_post_quant_conv": (1, "false", []),
        "invert_scale_latents": (0, "no", None),
        "act_fn": (None, 1, "", "tanh", "silu ", ["silu"], "__import__('os')", "x" * 10_000),
    }.items()
    for value in values
]

SEQUENCES = [
    fields(f"{name} {short(value)}", name, **{name: value})
    for name, values in {
        "block_out_channels": (
            [], 128, "128", None, [0], [-128, 256, 256, 512], [128, 256, 256], [128, 256, 256, 100],
            [[128], 256, 256, 512], [128.0, 256, 256, 512], {"0": 128}, [128] * 5, [True] * 4,
            [None] * 4, ["128"] * 4,
        ),
        "down_block_types": (
            [], None, "CogVideoXDownBlock3D", ["DownBlock3D"] * 4, ["CogVideoXDownBlock3D"] * 3,
            ["CogVideoXUpBlock3D"] * 4, [None] * 4, [1] * 4, ["x" * 10_000] * 4,
        ),
        "up_block_types": (
            [], 4, ["CogVideoXUpBlock3D"] * 5, ["CogVideoXDownBlock3D"] * 4, [["x"]] * 4,
        ),
    }.items()
    for value in values
]  # fmt: skip

UNKNOWN = [
    ignored("an unknown field", pad_mode="first"),
    ignored("a misspelt field", in_chanels=3),
    ignored("a thousand unknown fields", **{f"x{i}": i for i in range(1000)}),
    ignored("a field with a name of 100 KB", **{"n" * 100_000: 1}),
    ignored("a field with an escape sequence", **{"\x1b[2J": 1}),
    ignored("a field with a line end", **{"a\nb": 1}),
    ignored("an empty name", **{"": 1}),
    ignored("self", self=1),
    fields("another class", "_class_name", _class_name="AutoencoderKL"),
    fields("a class that is null", "_class_name", _class_name=None),
    fields("a class that is a list", "_class_name", _class_name=["AutoencoderKLCogVideoX"]),
    fields("a class with a line end", "_class_name", _class_name="a\nb"),
    fields("a class with a name of 100 KB", "_class_name", _class_name="n" * 100_000),
]

CONFLICTS = [
    fields("groups that do not divide", "multiple of norm_num_groups", norm_num_groups=48),
    fields("groups that are more than channels", "multiple of norm_num_groups",
           norm_num_groups=1024),
    fields("more compression than blocks", "temporal_compression_ratio",
           temporal_compression_ratio=2**11),
    fields("fewer types than blocks", "down_block_types",
           down_block_types=["CogVideoXDownBlock3D"]),
    of_folder("more layers than weights", "missing", "vae", layers_per_block=2),
    of_folder("other channels than the weights", "another shape", block_out_channels=[8]),
    of_folder("a million layers", "layers_per_block", layers_per_block=10**6),
    of_folder("channels of 2**40", "block_out_channels", block_out_channels=[2**40]),
    of_folder("channels of 10**30", "block_out_channels", block_out_channels=[HUGE]),
    of_folder("latents of 2**40 channels", "latent_channels", latent_channels=2**40),
    of_folder("pictures of 2**40 channels", "in_channels", in_channels=2**40),
    of_folder("a quant_conv without weights", "missing", "quant_conv", use_quant_conv=True),
    of_folder("a ratio that the blocks cannot give, as in diffusers",
              temporal_compression_ratio=4, wanted=0),
    of_folder("a shift and a mean", shift_factor=0.5, latents_mean=[0.0], latents_std=[1.0],
              wanted=0),
    of_folder("diffusers' private fields", _x=[{}], _diffusers_version=None, wanted=0),
]  # fmt: skip

ABSURD = [
    case
    for model in ("AutoencoderKLCogVideoX", "AutoencoderKL", "AutoencoderKLWan")
    for case in absurd(model)
]

LARGE = [
    Case("config", f"weights that no memory holds, of {pair}", partial(write, made=made),
         words=("parity", "run", pair, "--config", "config.json", "--out", "out", "--quiet"),
         says=("config.json: its weights take",))
    for pair, made in (
        ("cogvideox", {"block_out_channels": [65536] * 4}),
        ("kl", {"block_out_channels": [65536]}),
        ("wan", {"base_dim": 32768, "dim_mult": [1, 2], "temperal_downsample": [False]}),
    )
]  # fmt: skip

CASES = [*LARGE, *FILES, *COUNTS, *NUMBERS, *SEQUENCES, *UNKNOWN, *CONFLICTS, *ABSURD]
