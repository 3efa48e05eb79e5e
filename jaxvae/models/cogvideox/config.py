"""The configuration of the model: every field of diffusers' `config.json`, checked.

Source: diffusers 0.42.1, the arguments of `AutoencoderKLCogVideoX` (`register_to_config`).
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

from jaxvae.io.messages import shown

CLASS_NAME = "AutoencoderKLCogVideoX"
DOWN_BLOCK = "CogVideoXDownBlock3D"
UP_BLOCK = "CogVideoXUpBlock3D"
ACTIVATIONS = ("silu", "swish", "mish", "gelu", "relu")
LARGEST = 1 << 20
"""Bytes of a `config.json`: those that exist have about one thousand."""

# More than any such model has: what is beyond would be built for hours, or not be held in memory.
_MOST = {"layers_per_block": 100, "temporal_compression_ratio": 1024}
_MOST_CHANNELS = 1 << 16
_MOST_BLOCKS = 16
_SHOWN = 8


class ConfigError(ValueError):
    """A configuration that does not describe this model."""


@dataclass(frozen=True)
class CogVideoXVAEConfig:
    """Fields and defaults as in diffusers; sequences are tuples, so a config is hashable.

    `scaling_factor`, `shift_factor`, `latents_mean`, `latents_std`, `force_upcast` and
    `invert_scale_latents` are kept for pipelines: encode and decode never apply them.
    """

    class_name: ClassVar[str] = CLASS_NAME

    in_channels: int = 3
    out_channels: int = 3
    down_block_types: tuple[str, ...] = (DOWN_BLOCK,) * 4
    up_block_types: tuple[str, ...] = (UP_BLOCK,) * 4
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512)
    latent_channels: int = 16
    layers_per_block: int = 3
    act_fn: str = "silu"
    norm_eps: float = 1e-6
    norm_num_groups: int = 32
    temporal_compression_ratio: float = 4
    sample_height: int = 480
    sample_width: int = 720
    scaling_factor: float = 1.15258426
    shift_factor: float | None = None
    latents_mean: tuple[float, ...] | None = None
    latents_std: tuple[float, ...] | None = None
    force_upcast: float = True
    use_quant_conv: bool = False
    use_post_quant_conv: bool = False
    invert_scale_latents: bool = False

    def __post_init__(self) -> None:
        """Turn lists into tuples and check every field."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        self._check_types()
        self._check_values()

    @property
    def spatial_ratio(self) -> int:
        """Height of a video by height of its latent, and width by width."""
        return 1 << (len(self.block_out_channels) - 1)

    def video_frames(self, latent_frames: int) -> int:
        """Return the number of frames that so many latent frames are decoded to, in pairs."""
        ratio, odd = 1 << self.time_levels, latent_frames % 2
        return ratio * (latent_frames - odd) + odd

    @property
    def time_levels(self) -> int:
        """The number of blocks that halve (double) the frames: `int(log2(ratio))`, as diffusers.

        A ratio that is no power of two is rounded down: 6 gives 2 levels, like 4.
        """
        return int(math.log2(self.temporal_compression_ratio))

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """Build from the content of a `config.json`.

        Keys that start with `_` are diffusers' own; all but `_class_name` are ignored.
        """
        found = d.get("_class_name", CLASS_NAME)
        if found != CLASS_NAME:
            raise ConfigError(f"_class_name: expected {CLASS_NAME!r}, found {shown(repr(found))}")
        names = {field.name for field in dataclasses.fields(cls)}
        given = {key: value for key, value in d.items() if not key.startswith("_")}
        unknown = sorted(given.keys() - names)
        if unknown:
            more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
            raise ConfigError(
                f"{', '.join(map(shown, unknown[:_SHOWN]))}{more}: not a field of {CLASS_NAME};"
                " remove it from the config"
            )
        return cls(**given)

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read a `config.json`; every error names the file."""
        file = Path(path)
        try:
            if file.exists() and not file.is_file():
                raise ConfigError(f"{path}: expected a config.json, found what is not a file")
            size = file.stat().st_size
            if size > LARGEST:
                raise ConfigError(f"{path}: expected a config.json, found {size} bytes")
            content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: expected JSON, found {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: expected a JSON object, found {type(content).__name__}")
        try:
            return cls.from_dict(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types: tuples become lists."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None and type(None) in get_args(field.type):
                continue
            if field.type is int:
                _expect(_is_int(value) and value > 0, name, "a positive integer", value)
                most = _MOST.get(name, _MOST_CHANNELS)
                _expect(value <= most, name, f"at most {most}", value)
            elif field.type in (float, float | None):
                known = _is_number(value) or (name == "force_upcast" and isinstance(value, bool))
                _expect(known, name, "a number", value)
            elif field.type is bool:
                _expect(isinstance(value, bool), name, "true or false", value)
            elif field.type is str:
                _expect(isinstance(value, str), name, "a string", value)
            else:
                _expect(isinstance(value, tuple), name, "a list", value)
                if not name.startswith("latents_"):
                    blocks = f"at most {_MOST_BLOCKS} blocks"
                    _expect(len(value) <= _MOST_BLOCKS, name, blocks, len(value))
                for i, item in enumerate(value):
                    self._check_item(f"{name}[{i}]", item)

    @staticmethod
    def _check_item(name: str, item: Any) -> None:
        if name.startswith("block_out_channels"):
            _expect(_is_int(item) and item > 0, name, "a positive integer", item)
            _expect(item <= _MOST_CHANNELS, name, f"at most {_MOST_CHANNELS}", item)
        elif name.startswith("latents_"):
            _expect(_is_number(item) and math.isfinite(item), name, "a number", item)
            _expect(item > 0 or "std" not in name, name, "a positive number", item)
        else:
            block = DOWN_BLOCK if name.startswith("down") else UP_BLOCK
            _expect(item == block, name, repr(block), item)

    def _check_values(self) -> None:
        blocks = len(self.block_out_channels)
        _expect(blocks > 0, "block_out_channels", "at least one block", blocks)
        for name in ("down_block_types", "up_block_types"):
            length = len(getattr(self, name))
            wanted = f"{blocks} entries, as many as block_out_channels"
            _expect(length == blocks, name, wanted, length)
        groups = self.norm_num_groups
        for i, channels in enumerate(self.block_out_channels):
            wanted = f"a multiple of norm_num_groups ({groups})"
            _expect(channels % groups == 0, f"block_out_channels[{i}]", wanted, channels)
        ratio = self.temporal_compression_ratio
        finite = math.isfinite(ratio) and ratio >= 1
        _expect(finite, "temporal_compression_ratio", "a finite number of at least 1", ratio)
        most = _MOST["temporal_compression_ratio"]
        _expect(ratio <= most, "temporal_compression_ratio", f"at most {most}", ratio)
        positive = self.norm_eps > 0 and math.isfinite(self.norm_eps)
        _expect(positive, "norm_eps", "a positive number", self.norm_eps)
        factor, shift = self.scaling_factor, self.shift_factor
        finite = math.isfinite(factor) and factor != 0
        _expect(finite, "scaling_factor", "a finite number other than 0", factor)
        _expect(shift is None or math.isfinite(shift), "shift_factor", "a finite number", shift)
        known = f"one of {', '.join(ACTIVATIONS)}"
        _expect(self.act_fn.lower() in ACTIVATIONS, "act_fn", known, self.act_fn)


def _expect(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        kind = type(found).__name__
        raise ConfigError(f"{name}: expected {expected}, found {shown(repr(found))} ({kind})")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, unless it has a key twice: readers differ in which of them counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} twice")
    return found
