"""Norms, activations, limits, weights as an operation uses them, terms left out, precision."""

from collections.abc import Callable
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.core.arrays import Array
from parity.diagnose.probe import NORMS, PRODUCTS, Ways, again, first_argument, probe
from parity.diagnose.replay import Operation

SMALL = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 5e-6, 1e-5, 2e-5, 5e-5)
EPSILONS = (*SMALL, 1e-4, 1e-3, 5e-3, 1e-2, 0.1, 1.0)

Axes = tuple[int, ...]


@probe(*NORMS)
def epsilon(op: Operation) -> Ways:
    """Another epsilon in a norm, or a size where the epsilon stands."""
    own = _epsilon(op)
    for value in (*EPSILONS, float(op.subject.shape[-1])):
        if value != own:
            yield "epsilon", f"eps={value:g} instead of {own:g} in {op.name}", again(eps=value)


def _epsilon(op: Operation) -> float:
    eps = op.given.get("eps")
    return 1e-5 if eps is None else float(eps)


@probe("add", "radd", each=True)
def added(op: Operation) -> Ways:
    """Another small number added."""
    for at, own in enumerate(op.args):
        if isinstance(own, float) and 0 < abs(own) < 1e-2:
            for value in EPSILONS:
                change = partial(_with_argument, at=at, value=value)
                yield "epsilon", f"{value:g} instead of {own:g} added", change


def _with_argument(op: Operation, at: int, value: float) -> Any:
    return op.function(*op.args[:at], value, *op.args[at + 1 :], **op.kwargs)


@probe("group_norm")
def groups(op: Operation) -> Ways:
    """Statistics over other axes, or other groups."""
    x, count = op.subject, op.given["num_groups"]
    channels = x.shape[1]
    if x.ndim == 5:
        change = partial(_normed, axes=(2, 4, 5))
        yield "norm_axes", "statistics of each frame instead of all frames", change
    if x.ndim > 2:
        change = partial(_normed, axes=(2,))
        yield "norm_axes", "statistics of each position instead of all positions", change
    if 1 < count < channels:
        text = f"channel c in group c % {count} instead of c // {channels // count}"
        change = partial(_normed, axes=(1, *range(3, x.ndim + 1)), interleaved=True)
        yield "norm_axes", text, change
    for other in range(1, channels + 1):
        if channels % other == 0 and other != count:
            yield "norm_axes", f"{other} groups instead of {count}", again(num_groups=other)


@probe("layer_norm")
def axes(op: Operation) -> Ways:
    """Statistics over other axes."""
    n, own = op.subject.ndim, len(op.given["normalized_shape"])
    for over in (*(tuple(range(i, n)) for i in range(1, n)), *((i,) for i in range(1, n - 1))):
        if over != tuple(range(n - own, n)):
            yield "norm_axes", f"statistics over axes {over}", partial(_normed, axes=over)


@probe("group_norm", "layer_norm")
def norm_variance(op: Operation) -> Ways:
    """The one-pass variance in float32, or the variance divided by n - 1."""
    yield "norm_variance", "the variance as E[x^2] - E[x]^2 in float32", _one_pass
    unbiased = partial(_normed, statistics=partial(_statistics, correction=1))
    yield "norm_variance", "the variance divided by n - 1", unbiased


def _statistics(x: torch.Tensor, axes: Axes, correction: int = 0) -> tuple[Any, Any]:
    return torch.var_mean(x, axes, correction=correction, keepdim=True)


def _in_one_pass(x: torch.Tensor, axes: Axes) -> tuple[Any, Any]:
    x = x.float()
    mean = x.mean(axes, keepdim=True)
    variance = x.square().mean(axes, keepdim=True) - mean.square()
    return variance.clamp(min=0).double(), mean.double()


def _grouped(
    op: Operation, x: torch.Tensor, interleaved: bool = False
) -> tuple[torch.Tensor, Axes, Axes]:
    """An input of a norm, the axes that it goes over, and the shape of its parameters.

    Of a group norm axes are (item, group, channel, ...); `interleaved` puts channels first.
    """
    if op.name != "group_norm":
        row = tuple(op.given["normalized_shape"])
        return x, tuple(range(x.ndim - len(row), x.ndim)), row
    count, rest = op.given["num_groups"], x.shape[2:]
    x = x.reshape(len(x), *((-1, count) if interleaved else (count, -1)), *rest)
    return x, tuple(range(2, x.ndim)), (-1, *[1] * len(rest))


def _normed(
    op: Operation,
    statistics: Callable[[torch.Tensor, Axes], tuple[Any, Any]] = _statistics,
    axes: Axes = (),
    interleaved: bool = False,
) -> Any:
    """The norm with other variance and mean, or over other axes than its own."""
    x, own, row = _grouped(op, op.subject, interleaved)
    variance, mean = statistics(x, axes or own)
    y = ((x - mean) * torch.rsqrt(variance + _epsilon(op))).reshape(op.subject.shape)
    weight, bias = op.given.get("weight"), op.given.get("bias")
    y = y if weight is None else y * weight.reshape(row)
    return y if bias is None else y + bias.reshape(row)


_one_pass = partial(_normed, statistics=_in_one_pass)


def group_factors(op: Operation, plain: Array, port: Array) -> tuple[float, float] | None:
    """Signature of a wrong variance: every group of every sample is off by a factor of its own.

    `plain` and `port` are the right and the port's output, channel-last. Returns what is left of
    the error if these factors are taken out, and the relative error that the variance in one pass
    would make; `None` if the operation is no such norm. The rounding of the one-pass variance
    depends on the order of summation, so that it can be recognised and not repeated.
    """
    if op.name not in ("group_norm", "layer_norm") or plain.shape != port.shape:
        return None
    _, axes, row = _grouped(op, op.subject)
    last = op.subject.shape[1:2] if op.name == "group_norm" else row
    if plain.shape[-len(last) :] != tuple(last):  # what another operation made of it
        return None
    weight, bias = op.given.get("weight"), op.given.get("bias")
    normed = []
    for array in (plain, port):
        y = torch.from_numpy(array.astype(np.float64))
        y = y.movedim(-1, 1) if op.name == "group_norm" else y
        y = y if bias is None else y - bias.reshape(row)
        normed.append(_grouped(op, y if weight is None else y / weight.reshape(row))[0])
    right, wrong = normed
    factor = (right * wrong).sum(axes, keepdim=True) / right.square().sum(axes, keepdim=True)
    left = (wrong - factor * right).norm() / (wrong - right).norm()
    exact = op.result()
    return float(left), float((_one_pass(op) - exact).norm() / exact.norm())


@probe("batch_norm")
def norm_buffers(op: Operation) -> Ways:
    """Statistics of the batch instead of the stored ones."""
    change = again(running_mean=None, running_var=None, training=True)
    yield "norm_buffers", "statistics of the batch instead of the stored ones", change
    n = op.subject.numel() // op.subject.shape[1]
    for text, factor in {"n / (n - 1)": n / max(n - 1, 1), "(n - 1) / n": (n - 1) / n}.items():
        change = partial(lambda op, k: op.again(running_var=k * op.given["running_var"]), k=factor)
        yield "norm_buffers", f"the stored variance times {text}", change


@probe("softmax", "log_softmax")
def softmax_axis(op: Operation) -> Ways:
    """A softmax over another axis."""
    for axis in range(op.subject.ndim):
        yield "norm_axes", f"{op.name} over axis {axis}", partial(_softmax_over, axis=axis)
    for n in range(2, len(op.subject) if op.subject.ndim > 2 else 0):  # heads beside items
        if len(op.subject) % n == 0:
            text = f"{op.name} over each {n} of axis 0"
            yield "norm_axes", text, partial(_softmax_of_parts, n=n)


def _softmax_of_parts(op: Operation, n: int) -> Any:
    return op.subject.reshape(-1, n, *op.subject.shape[1:]).softmax(1).flatten(0, 1)


def _softmax_over(op: Operation, axis: int) -> Any:
    # along another axis all entries may be masked: that is NaN only where the mask is infinite
    scores = op.subject.clamp(min=torch.finfo(torch.float32).min)
    return op.again(**{next(iter(op.given)): scores, "dim": axis})


@probe("sum", "mean", "amax", "amin", "var", "std", "norm", "logsumexp")
def reduced_axes(op: Operation) -> Ways:
    """A sum, a mean or the like over other axes."""
    n, own = op.subject.ndim, op.given.get("dim")
    axes = (own,) if isinstance(own, int) else own or range(n)
    taken = tuple(sorted(axis % n for axis in axes))
    for over in (
        *((axis,) for axis in range(n)),
        *(tuple(range(first, n)) for first in range(n - 1)),
    ):
        if over != taken:
            yield "norm_axes", f"{op.name} over axes {over} instead of {taken}", again(dim=over)


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
    "nothing": torch.clone,
}
RAMPS = ("relu", "relu6", "leaky_relu", "prelu", "hardswish", "hardsigmoid")
EXPONENTIAL = ("elu", "selu", "celu", "softplus", "mish", "tanh", "sigmoid", "logsigmoid")
ACTIVATION_NAMES = ("silu", "gelu", "softsign", *RAMPS, *EXPONENTIAL)


@probe(*ACTIVATION_NAMES)
def activation(op: Operation) -> Ways:
    """Another activation."""
    for name, function in ACTIVATIONS.items():
        text = f"{name} instead of {op.name}"
        yield "activation", text, partial(_activated, function=function)


def _activated(op: Operation, function: Function) -> Any:
    y = function(op.subject)
    return op.subject.copy_(y) if op.given.get("inplace") else y


@probe("clamp", "clip", "hardtanh", "clamp_min")
def clamp(op: Operation) -> Ways:
    """No limit on the values."""
    yield "clamp", f"leaving out {op.name}", first_argument


@probe(*PRODUCTS)
def weights_layout(op: Operation) -> Ways:
    """A kernel flipped, or with two of its axes swapped."""
    weight: Any = op.given.get("weight")
    ndim = 0 if weight is None else weight.ndim
    space = [axis for axis in range(2, ndim) if weight.shape[axis] > 1]
    for over in {tuple(space), *zip(space)} - {()}:
        change = partial(_with_weight, change=partial(torch.flip, dims=over))
        yield "weights_layout", f"the kernel flipped along axes {over}", change
    if ndim > 2 and weight.shape[0] == weight.shape[1] > 1 and space:
        change = partial(_with_weight, change=lambda w: w.transpose(0, 1).flip(space))
        yield "weights_layout", "the kernel flipped, with its channels swapped", change
    for a, b in combinations(range(ndim), 2):
        if weight.shape[a] == weight.shape[b] > 1:
            change = partial(_with_weight, change=partial(torch.transpose, dim0=a, dim1=b))
            yield "weights_layout", f"axes {a} and {b} of the kernel swapped", change


def _with_weight(op: Operation, change: Function) -> Any:
    return op.again(weight=change(op.given["weight"]))


@probe("gru", "lstm", "gru_cell", "lstm_cell")
def gates(op: Operation) -> Ways:
    """Gates of a recurrent layer in another order."""
    for order in permutations(range(3 if "gru" in op.name else 4)):
        yield "weights_layout", f"gates of {op.name} in order {order}", partial(_gated, order=order)


def _gated(op: Operation, order: tuple[int, ...]) -> Any:
    def gated(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.cat([value.chunk(len(order))[i] for i in order])
        return [*map(gated, value)] if isinstance(value, (list, tuple)) else value

    return op.function(*op.args[:2], *map(gated, op.args[2:]), **op.kwargs)


@probe(*PRODUCTS, *NORMS)
def bias(op: Operation) -> Ways:
    """No bias."""
    if isinstance(op.given.get("bias"), torch.Tensor):
        yield "scale_or_offset", f"leaving out the bias in {op.name}", again(bias=None)


@probe(*NORMS)
def scale(op: Operation) -> Ways:
    """No scale of a norm, with or without its bias, or a scale that is counted from one."""
    if isinstance(op.given.get("weight"), torch.Tensor):
        for text, change in (
            ("leaving out the weight", again(weight=None)),
            ("leaving out weight and bias", again(weight=None, bias=None)),
            ("1 added to the weight", partial(_with_weight, change=lambda weight: weight + 1)),
            ("1 taken from the weight", partial(_with_weight, change=lambda weight: weight - 1)),
        ):
            yield "scale_or_offset", f"{text} in {op.name}", change


TERMS = ("add", "iadd", "radd", "sub", "isub", "rsub")
FACTORS = ("mul", "imul", "rmul", "div", "truediv", "rtruediv")


@probe(*TERMS, *FACTORS, each=True)
def left_out(op: Operation) -> Ways:
    """A term or a factor left out, or a term subtracted instead of added."""
    if len(op.args) != 2:
        return
    arrays = [isinstance(x, torch.Tensor) and x.ndim > 0 for x in op.args]
    cause = "glue" if all(arrays) and op.name in TERMS else "scale_or_offset"
    for at, other in ((0, "second"), (1, "first")):
        if arrays[at]:
            only = partial(lambda op, at: op.args[at].expand(op.result().shape).clone(), at=at)
            yield cause, f"leaving out the {other} operand of {op.name}", only
    if op.name in TERMS:
        sign = -1 if "add" in op.name else 1
        yield cause, f"the other sign in {op.name}", lambda op: op.args[0] + sign * op.args[1]


@probe(*PRODUCTS)
def matmul_precision(op: Operation) -> Ways:
    """Operands of products rounded to bfloat16 or TF32."""
    for name, bits in (("bfloat16", 8), ("TF32", 11)):
        yield "matmul_precision", f"operands rounded to {name}", partial(_rounded, bits=bits)
    text = "operands and result rounded to bfloat16"
    yield "matmul_precision", text, lambda op: _low(_rounded(op, 8), 8)


def _rounded(op: Operation, bits: int) -> Any:
    return op.again(**{k: _low(v, bits) for k, v in op.given.items() if k != "bias"})


def _low(value: Any, bits: int) -> Any:
    """A floating tensor with that many bits of mantissa; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(torch.round(mantissa * 2**bits), exponent - bits)
