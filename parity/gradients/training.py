"""What training would change on one side alone, though all gradients are right."""

from collections.abc import Mapping, Sequence

from parity.core.globs import named
from parity.core.tensors import Tensor, Weight


def training_notes(
    weights: Sequence[Weight], ref: Sequence[Tensor], port: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Notes on parameters that are trained otherwise; `port` are its tensors by full name."""
    held: dict[str, list[Tensor]] = {}
    for line in weights:
        if line.paired and line.kind == "parameter" and line.nnx_name in port:
            held.setdefault(line.name, []).append(port[line.nnx_name])
    own = [one for one in ref if one.full_name in held and not one.buffer]
    frozen = [one.full_name for one in own if one.frozen]
    loose = [one.full_name for one in own if any(leaf.buffer for leaf in held[one.full_name])]
    names: dict[int, list[str]] = {}
    for one in own:
        names.setdefault(one.identity, []).append(one.full_name)
    tied = [
        name
        for first, *others in names.values()
        for name in others
        if {x.identity for x in held[name]} != {x.identity for x in held[first]}
    ]
    found = {
        "no nnx.Param in the port, so that training leaves it": loose,
        "tied in the reference and held once more in the port: training parts the two": tied,
        "frozen in the reference (requires_grad=False) and an nnx.Param in the port": (
            [name for name in frozen if name not in loose] if len(frozen) < len(own) else []
        ),
    }
    return tuple(f"{named(one)}: {text}" for text, one in found.items() if one)
