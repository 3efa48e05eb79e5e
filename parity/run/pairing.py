"""Modules and tensors of both models that correspond, whatever the cases call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.core.calls import ModuleInfo
from parity.core.tensors import Tensor, Weight
from parity.options.options import Options
from parity.weights.module_map import Folding, fold
from parity.weights.weight_map import make_weight_map


@dataclass(frozen=True)
class Pairing:
    """Modules that correspond, and tensors that hold the same values.

    `modules` counts the reference's, `tensors` are the reference's.
    """

    modules: int
    folding: Folding
    weight_map: tuple[Weight, ...]
    tensors: Sequence[Tensor] = ()


def pair(
    modules: Mapping[str, ModuleInfo],
    tensors: Sequence[Tensor],
    port: nnx.Module,
    options: Options,
) -> Pairing:
    """Pair the reference's modules and tensors with those of the port."""
    found = capture_nnx.submodules(port)
    infos = {path: capture_nnx.module_info(path, child) for path, child in found.items()}
    weight_map = make_weight_map(
        tensors,
        capture_nnx.named_tensors(port),
        rename=options.rename,
        rules=options.fused,
        declared=options.declared,
    )
    folding = fold(modules, infos, weight_map, options.rename or {})
    return Pairing(len(modules), folding, weight_map, tensors)
