"""Configurations: the fields of a diffusers `config.json`, read, checked and written again."""

import dataclasses
import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin

from jaxvae.io.messages import shown

ACTIVATIONS = ("silu", "swish", "mish", "gelu", "relu")
LARGEST = 1 << 20
"""Bytes of a `config.json`: those that exist have about one thousand."""

# More than any such model has: what is beyond would be built for hours, or not be held in memory.
_MOST_LAYERS = 16
MOST_CHANNELS = 1 << 16
MOST_BLOCKS = 16
_SHOWN = 8


class ConfigError(ValueError):
    """A configuration that does not describe this model."""


@dataclass(frozen=True)
class VAEConfig:
    """Base of all configurations: a subclass has the fields, as in diffusers.

    Lists become tuples, so that a configuration is hashable, and every field is checked by its
    type. `choices` has the strings that may be in a list; a subclass checks what else must hold in
    `_check_values`.

    Source: diffusers 0.42.1, `ConfigMixin`.
    """

    class_name: ClassVar[str]
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __post_init__(self) -> None:
        """Turn lists into tuples and check every field."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        for field in dataclasses.fields(self):
            self._check_type(field.name, getattr(self, field.name), field.type)
        self._check_values()

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """Build from the content of a `config.json`.

        Keys that start with `_` are diffusers' own; all but `_class_name` are ignored. Other keys
        that are no fields are ignored too, with a warning, as diffusers does: Wan 2.2 as it is
        published has one.
        """
        name = cls.class_name
        found = d.get("_class_name", name)
        if found != name:
            raise ConfigError(f"_class_name: expected {name!r}, found {shown(repr(found))}")
        names = {field.name for field in dataclasses.fields(cls)}
        given = {key: value for key, value in d.items() if not key.startswith("_")}
        unknown = sorted(given.keys() - names)
        if unknown:
            more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
            warnings.warn(
                f"{', '.join(map(shown, unknown[:_SHOWN]))}{more}: not a field of {name}; ignored,"
                " as diffusers does",
                stacklevel=2,
            )
        return cls(**{key: value for key, value in given.items() if key in names})

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read a `config.json`; every error names the file."""
        try:
            return cls.from_dict(read_json(path))
        except ConfigError as error:
            message = str(error)
            named = message if message.startswith(f"{path}: ") else f"{path}: {message}"
            raise ConfigError(named) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types: tuples become lists."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def _check_values(self) -> None:
        """Check what the types of the fields do not say."""

    def _check_type(self, name: str, value: Any, kind: Any) -> None:
        """Check a field, or with a name such as `latents_std[1]` an item of one."""
        kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        if value is None and NoneType in kinds:
            return
        items = [get_args(one)[0] for one in kinds if get_origin(one) is tuple]
        if items and (isinstance(value, tuple) or kinds[0] not in (int, float)):
            self._check_list(name, value, items[0])
        elif kinds[0] is int:
            expect(_is_int(value) and value > 0, name, "a positive integer", value)
            layers = name in ("layers_per_block", "num_res_blocks")
            most_of = _MOST_LAYERS if layers else MOST_CHANNELS
            expect(value <= most_of, name, f"at most {most_of}", value)
        elif kinds[0] is float:
            known = _is_number(value) or (name == "force_upcast" and isinstance(value, bool))
            expect(known, name, "a number", value)
            if name.startswith("latents_std"):
                expect(value > 0, name, "a positive number", value)
        elif kinds[0] is bool:
            expect(isinstance(value, bool), name, "true or false", value)
        else:
            choices = self.choices.get(name.partition("[")[0])
            expected = " or ".join(map(repr, choices)) if choices else "a string"
            holds = value in choices if choices else isinstance(value, str)
            expect(holds, name, expected, value)

    def _check_list(self, name: str, value: Any, kind: Any) -> None:
        expect(isinstance(value, tuple), name, "a list", value)
        if not name.startswith("latents_"):
            most = f"at most {MOST_BLOCKS} blocks"
            expect(len(value) <= MOST_BLOCKS, name, most, len(value))
        for i, item in enumerate(value):
            self._check_type(f"{name}[{i}]", item, kind)


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the content of a `config.json`; every ConfigError names the file."""
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
    return content


def check_blocks(config: Any) -> None:
    """Raise ConfigError unless blocks, channels, groups and activation fit together."""
    blocks = len(config.block_out_channels)
    expect(blocks > 0, "block_out_channels", "at least one block", blocks)
    for name in ("down_block_types", "up_block_types"):
        length = len(getattr(config, name))
        wanted = f"{blocks} entries, as many as block_out_channels"
        expect(length == blocks, name, wanted, length)
    groups = config.norm_num_groups
    for i, channels in enumerate(config.block_out_channels):
        wanted = f"a multiple of norm_num_groups ({groups})"
        expect(channels % groups == 0, f"block_out_channels[{i}]", wanted, channels)
    known = f"one of {', '.join(ACTIVATIONS)}"
    expect(config.act_fn.lower() in ACTIVATIONS, "act_fn", known, config.act_fn)


def check_factors(config: Any) -> None:
    """Raise ConfigError unless latents can be scaled by `scaling_factor`."""
    factor = config.scaling_factor
    expect(factor != 0, "scaling_factor", "a finite number other than 0", factor)


def expect(holds: bool, name: str, expected: str, found: object) -> None:
    """Raise ConfigError with the name of the field, unless it `holds`."""
    if not holds:
        kind = type(found).__name__
        raise ConfigError(f"{name}: expected {expected}, found {shown(repr(found))} ({kind})")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    """True for a number that a float can hold: of none that is not finite, or larger."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, unless it has a key twice: readers differ in which of them counts."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} twice")
        found[name] = value
    return found
