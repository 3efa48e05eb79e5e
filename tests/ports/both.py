"""What reference and port of `tests.ports` return, to show that a port is right."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

NAMES = (
    "bert",
    "llama",
    "vit",
    "convnext",
    "resnet",
    "efficientnet",
    "clip_text",
    "t5",
    "whisper",
    "mamba2",
    "kl_vae",
    "wan_block",
    "gpt2",
)


def made(name: str) -> tuple[torch.nn.Module, Any, tuple[Any, ...]]:
    """(reference, port, arguments) of one of the `NAMES`."""
    found: tuple[torch.nn.Module, Any, tuple[Any, ...]] = import_module(
        f"tests.ports.{name}"
    ).make()
    return found


def outputs(name: str) -> list[tuple[Any, Any]]:
    """The arrays that both return, in order, the reference's with the port's axes."""
    reference, port, args = made(name)
    with torch.no_grad():
        theirs = [*_arrays(reference(*map(torch.from_numpy, args)))]
    return [
        (_last("", one.numpy()).reshape(other.shape), other)
        for one, other in zip(theirs, port_outputs(name, port, args), strict=True)
    ]


def port_outputs(name: str, port: Any, args: tuple[Any, ...]) -> list[Any]:
    """The arrays that a port with the arguments of one of the `NAMES` returns."""
    return [*map(np.asarray, _arrays(port(*(_last(name, array) for array in args))))]


def _last(name: str, array: Any) -> Any:
    """Axis 1 at the end of images and videos, and of Whisper's features."""
    features = name == "whisper" and array.ndim == 3
    return np.moveaxis(array, 1, -1) if array.ndim > 3 or features else array


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for one in value:
            yield from _arrays(one)
    elif hasattr(value, "shape"):
        yield value
