"""Modules and tensors of both models that correspond, whatever the cases call."""

from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.core.globs import renamed
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
    names = {path: renamed(path, options.rename or {}) for path in modules}
    folding = fold(modules, infos, names, options.tied)
    weight_map = make_weight_map(
        tensors,
        capture_nnx.named_tensors(port),
        modules=found,
        folding=folding,
        rename=options.rename,
        rules=options.fused,
        declared=options.declared,
    )
    return Pairing(len(modules), folding, weight_map, tensors)
