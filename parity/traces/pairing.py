"""Modules and tensors of two recordings that correspond."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parity.core.calls import ModuleInfo
from parity.core.tensors import Tensor, Transform, Weight
from parity.run.pairing import Pairing
from parity.traces.trace import Golden
from parity.weights.module_map import fold
from parity.weights.weight_map import make_weight_map


def pair_traces(
    modules: Mapping[str, ModuleInfo], tensors: Sequence[Tensor], golden: Golden
) -> Pairing:
    """Modules of the same path, and tensors of the same values."""
    found = make_weight_map(tensors, golden.tensors)
    folding = fold(modules, golden.modules, found, {})
    refs, ports = ({one.full_name: one for one in side} for side in (tensors, golden.tensors))
    return Pairing(len(modules), folding, tuple(_in_order(one, refs, ports) for one in found))


def _in_order(line: Weight, ref: Mapping[str, Tensor], port: Mapping[str, Tensor]) -> Weight:
    """The line: of two models of one framework the axes have one order."""
    usual = Transform(tuple(range(len(line.shape))))
    if not line.transform or line.transform == usual:
        return line
    before, after = ref[line.name], port[line.nnx_name]
    if before.shape == after.shape and (before.read() == after.read()).all():
        return replace(line, transform=usual)
    text = f"its axes are in the order {line.transform}"
    return replace(line, transform="", cause="weights_layout", finding=text)
