"""Modules and tensors of both models that correspond, whatever the cases call."""

from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.capture.constants import other_constants
from parity.options.options import Options
from parity.run.protocols import Reference
from parity.run.records import Pairing
from parity.weights.module_map import fold
from parity.weights.weight_map import make_weight_map


def pair(reference: Reference, port: nnx.Module, options: Options) -> Pairing:
    """Pair the reference's modules and tensors with those of the port."""
    modules, tensors = reference.modules(), reference.tensors()
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
    stated = other_constants(modules, infos, folding.port_of)
    return Pairing(len(modules), folding, weight_map, tensors, stated)
