"""Values: activations, limits, weights as an operation uses them, terms left out, precision."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from parity.diagnose.probe import (
    NORMS,
    PRODUCTS,
    Trial,
    again,
    all_of,
    first_argument,
    probe,
    together_and_alone,
)
from parity.diagnose.replay import Change, Operation

Function = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Function] = {
    "SiLU": F.silu,
    "exact GELU": F.gelu,
    "tanh GELU": partial(F.gelu, approximate="tanh"),
    "quick GELU": lambda x: x * torch.sigmoid(1.702 * x),
    "ReLU": F.relu,
    "ReLU6": F.relu6,
    "leaky ReLU 0.01": partial(F.leaky_relu, negative_slope=0.01),
    "leaky ReLU 0.1": partial(F.leaky_relu, negative_slope=0.1),
    "leaky ReLU 0.2": partial(F.leaky_relu, negative_slope=0.2),
    "leaky ReLU 0.3": partial(F.leaky_relu, negative_slope=0.3),
    "ELU": F.elu,
    "SELU": F.selu,
    "CELU": F.celu,
    "Mish": F.mish,
    "softplus": F.softplus,
    "hard swish": F.hardswish,
    "relu6(x + 3) / 6": F.hardsigmoid,
    "clip(0.2 x + 0.5, 0, 1)": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "log sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "no activation": torch.clone,
}
RAMPS = ("relu", "relu6", "leaky_relu", "prelu", "hardswish", "hardsigmoid")
EXPONENTIAL = ("elu", "selu", "celu", "softplus", "mish", "tanh", "sigmoid", "logsigmoid")
ACTIVATION_NAMES = ("silu", "gelu", "softsign", *RAMPS, *EXPONENTIAL)


@probe
def activation(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Another activation."""
    for group in together_and_alone(operations, ACTIVATION_NAMES):
        for name, function in ACTIVATIONS.items():
            text = f"{name} instead of {group[0].name}"
            yield Trial("activation", text, all_of(group, partial(_activated, function=function)))


def _activated(op: Operation, function: Function) -> Any:
    y = function(op.subject)
    return op.subject.copy_(y) if op.given.get("inplace") else y


@probe
def clamp(operations: Sequence[Operation]) -> Iterator[Trial]:
    """No limit on the values."""
    for group in together_and_alone(operations, ("clamp", "clip", "hardtanh", "clamp_min")):
        yield Trial("clamp", f"no {group[0].name}", all_of(group, first_argument))


@probe
def weights_layout(operations: Sequence[Operation]) -> Iterator[Trial]:
    """A kernel flipped, or with two of its axes swapped."""
    for group in together_and_alone(operations, PRODUCTS):
        weight = group[0].given.get("weight")
        if not isinstance(weight, torch.Tensor):
            continue
        space = tuple(range(2, weight.ndim))
        for axes in dict.fromkeys([space, *((axis,) for axis in space)]) if space else ():
            change = all_of(group, partial(_flipped, axes=axes))
            yield Trial("weights_layout", f"the kernel flipped along axes {axes}", change)
        for a in range(weight.ndim):
            for b in range(a + 1, weight.ndim):
                if weight.shape[a] == weight.shape[b] > 1:
                    change = all_of(group, partial(_transposed, a=a, b=b))
                    yield Trial("weights_layout", f"axes {a} and {b} of the kernel swapped", change)


def _flipped(op: Operation, axes: tuple[int, ...]) -> Any:
    return op.again(weight=op.given["weight"].flip(axes))


def _transposed(op: Operation, a: int, b: int) -> Any:
    return op.again(weight=op.given["weight"].transpose(a, b))


@probe
def other_parameters(operations: Sequence[Operation]) -> Iterator[Trial]:
    """No bias, no scale of a norm, neither, or a scale that is counted from one."""
    bare = {"weight": None, "bias": None}
    ways: list[tuple[str, tuple[str, ...], tuple[str, ...], Change]] = [
        ("no bias", ("bias",), (*PRODUCTS, *NORMS), again(bias=None)),
        ("no weight", ("weight",), NORMS, again(weight=None)),
        ("neither weight nor bias", ("weight", "bias"), NORMS, again(**bare)),
        ("1 added to the weight", ("weight",), NORMS, partial(_from_one, by=1.0)),
        ("1 taken from the weight", ("weight",), NORMS, partial(_from_one, by=-1.0)),
    ]
    for text, names, kinds, change in ways:
        for group in together_and_alone(operations, kinds):
            if all(isinstance(group[0].given.get(name), torch.Tensor) for name in names):
                yield Trial("scale_or_offset", f"{text} in {group[0].name}", all_of(group, change))


def _from_one(op: Operation, by: float) -> Any:
    return op.again(weight=op.given["weight"] + by)


TERMS = ("add", "iadd", "radd", "sub", "isub", "rsub")
FACTORS = ("mul", "imul", "rmul", "div", "truediv", "rtruediv")


@probe
def left_out(operations: Sequence[Operation]) -> Iterator[Trial]:
    """A term or a factor left out, or a term subtracted instead of added."""
    for operation in operations:
        if operation.name not in (*TERMS, *FACTORS) or len(operation.args) != 2:
            continue
        arrays = [isinstance(x, torch.Tensor) and x.ndim > 0 for x in operation.args]
        cause = "glue" if all(arrays) and operation.name in TERMS else "scale_or_offset"
        for at, other in ((0, "second"), (1, "first")):
            if arrays[at]:
                text = f"without the {other} operand of {operation.name}"
                yield Trial(cause, text, {operation.place: partial(_only, at=at)})
        if operation.name in TERMS:
            text = f"the other sign in {operation.name}"
            yield Trial(cause, text, {operation.place: _other_sign})


def _only(op: Operation, at: int) -> Any:
    return op.args[at].expand(op.result().shape).clone()


def _other_sign(op: Operation) -> Any:
    return op.args[0] - op.args[1] if "add" in op.name else op.args[0] + op.args[1]


@probe
def matmul_precision(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Operands of every product rounded to bfloat16 or TF32."""
    products = [operation for operation in operations if operation.name in PRODUCTS]
    for name, bits in (("bfloat16", 8), ("TF32", 11)) if products else ():
        text = f"operands rounded to {name} in every product"
        yield Trial("matmul_precision", text, all_of(products, partial(_rounded, bits=bits)))


def _rounded(op: Operation, bits: int) -> Any:
    return op.again(**{k: low(v, bits) for k, v in op.given.items() if k != "bias"})


def low(value: Any, bits: int) -> Any:
    """A floating tensor with that many bits of mantissa; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(torch.round(mantissa * 2**bits), exponent - bits)
