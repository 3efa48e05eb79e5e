"""Leaves that a tensor without a counterpart is likely to be in the port, and how to say so."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from parity.core.globs import renamed
from parity.core.tensors import Tensor, Weight
from parity.weights.mismatch import Owners


def suggest(
    lines: Sequence[Weight],
    ref: Mapping[str, Tensor],
    spare: Sequence[Tensor],
    modules: Collection[str],
    rename: Mapping[str, str],
) -> list[Weight]:
    """The lines, with the likeliest of the `spare` leaves for each tensor that the port lacks.

    By values, else by size: then one beside those of its module, else that of the nearest name.
    `modules` are the paths of the port's modules.
    """
    owners = Owners(spare)
    lacking = {line.name: ref[line.name] for line in lines if line.name and not line.nnx_name}
    by_values = {
        name: next(iter(owners.of(tensor.read())), None) for name, tensor in lacking.items()
    }
    beside = {ref[name].path: leaf.path for name, leaf in by_values.items() if leaf}
    found: list[Weight] = []
    for line in lines:
        tensor = None if line.nnx_name else lacking.get(line.name)
        text = _parametrized(line.name) if tensor else ""
        if tensor is None or (not text and not any(one.size == tensor.size for one in spare)):
            found.append(line)
        elif text:
            found.append(replace(line, finding=f"{line.finding}; {text}"))
        else:
            same = by_values[line.name]
            leaf = same or _nearest(tensor, spare, beside.get(tensor.path))
            whole = renamed(tensor.path, rename) not in modules
            found.append(_suggested(line, tensor, leaf, whole=whole, same=same is not None))
    return found


def _suggested(line: Weight, tensor: Tensor, leaf: Tensor, *, whole: bool, same: bool) -> Weight:
    """The line with a likely leaf, found by `same` values; `whole`: rename all of its module."""
    what = "holds the same values" if same else "has its size"
    names = (tensor.path, leaf.path) if whole else (tensor.full_name, leaf.full_name)
    text = f"the port's `{leaf.full_name}` {leaf.shape} {what}: use {how(*names)}"
    return replace(line, suggested=leaf.full_name, finding=f"{line.finding}; {text}")


_ORIGINAL = re.compile(r"(?:(?P<path>.*)\.)?parametrizations\.(?P<name>[^.]+)\.original\d*")


def _parametrized(name: str) -> str:
    """Advice on a tensor of which PyTorch makes a weight at every call; `""` of others."""
    found = _ORIGINAL.fullmatch(name)
    if found is None:
        return ""
    path, own = found["path"] or "", found["name"]
    made = f"{path}.{own}" if path else own
    return (
        f"PyTorch makes `{made}` of it at every call: where the port holds the result, first call"
        " torch.nn.utils.parametrize.remove_parametrizations("
        f"reference.get_submodule({path!r}), {own!r})"
    )


def how(name: str, port_name: str) -> str:
    """The `rename=` that makes `port_name` of `name`, and of what is named alike.

    Numbers that both have become `*`, and so does all that follows a differing part.
    """
    wanted = _generalised(name.split("."), port_name.split("."))
    if renamed(name, wanted) != port_name:
        wanted = {name: port_name}
    return f"rename={wanted}"


def _generalised(ref: list[str], port: list[str]) -> dict[str, str]:
    shorter = min(len(ref), len(port))
    start = next((i for i in range(shorter) if ref[i] != port[i]), shorter)
    end = 0
    while end < shorter - start and ref[-1 - end] == port[-1 - end]:
        end += 1
    before, after = (
        ["*" if part.isdigit() else part for part in parts]
        for parts in (ref[:start], ref[len(ref) - end :])
    )
    middle, other = ref[start : len(ref) - end], port[start : len(port) - end]
    if not (end and middle and other):
        return {".".join([*before, *middle, *after]): ".".join([*before, *other, *after])}
    one, another = ".".join([*before, *middle]), ".".join([*before, *other])
    return {one: another, f"{one}.*": f"{another}.*"}


def _nearest(tensor: Tensor, spare: Sequence[Tensor], beside: str | None) -> Tensor:
    def likeness(leaf: Tensor) -> tuple[bool, float]:
        alike = SequenceMatcher(None, tensor.full_name, leaf.full_name).ratio()
        return leaf.path == beside, alike

    return max((leaf for leaf in spare if leaf.size == tensor.size), key=likeness)
