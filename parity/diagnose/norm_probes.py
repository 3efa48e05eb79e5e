"""Norms: epsilon, axes, groups, variance, stored statistics; and the axis of a softmax."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from parity.core.arrays import Array
from parity.diagnose.probe import NORMS, Trial, again, all_of, probe, together_and_alone
from parity.diagnose.replay import Change, Operation

SMALL = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 5e-6, 1e-5, 2e-5, 5e-5)
EPSILONS = (*SMALL, 1e-4, 1e-3, 5e-3, 1e-2, 0.1, 1.0)


@probe
def epsilon(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Another epsilon in a norm, or a small number added elsewhere."""
    for group in together_and_alone(operations, NORMS):
        own = group[0].given.get("eps")
        own = 1e-5 if own is None else own
        width = group[0].subject.shape[-1]  # a size given where the epsilon stands
        for value in (*EPSILONS, float(width)):
            if value != own:
                text = f"eps={value:g} instead of {own:g} in {group[0].name}"
                yield Trial("epsilon", text, all_of(group, again(eps=value)))
    for operation in operations:
        if operation.name in ("add", "radd") and len(operation.args) == 2:
            for at, own in enumerate(operation.args):
                if isinstance(own, float) and 0 < abs(own) < 1e-2:
                    for value in EPSILONS:
                        text = f"{value:g} instead of {own:g} added"
                        yield Trial("epsilon", text, {operation.place: _with_argument(at, value)})


def _with_argument(at: int, value: float) -> Change:
    def change(op: Operation) -> Any:
        args = list(op.args)
        args[at] = value
        return op.function(*args, **op.kwargs)

    return change


@probe
def norm_axes(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Statistics over other axes, or other groups."""
    for group in together_and_alone(operations, ("group_norm",)):
        x, count = group[0].subject, group[0].given["num_groups"]
        channels = x.shape[1]
        ways: list[tuple[str, Change]] = []
        if x.ndim == 5:
            ways.append(("statistics of each frame instead of all frames", _per_frame))
        if x.ndim > 2:
            ways.append(("statistics of each position instead of all positions", _per_position))
        if 1 < count < channels:
            text = f"channel c in group c % {count} instead of c // {channels // count}"
            ways.append((text, _interleaved))
        ways += [
            (f"{other} groups instead of {count}", again(num_groups=other))
            for other in range(1, channels + 1)
            if channels % other == 0 and other != count
        ]
        for text, change in ways:
            yield Trial("norm_axes", text, all_of(group, change))
    for group in together_and_alone(operations, ("layer_norm",)):
        n, own = group[0].subject.ndim, len(group[0].given["normalized_shape"])
        for axes in (*(tuple(range(i, n)) for i in range(1, n)), *((i,) for i in range(1, n - 1))):
            if axes != tuple(range(n - own, n)):
                text = f"statistics over axes {axes}"
                yield Trial("norm_axes", text, all_of(group, _over(axes)))


def _per_frame(op: Operation) -> Any:
    x = op.subject
    frames = x.transpose(1, 2).reshape(-1, x.shape[1], *x.shape[3:])
    y = op.again(input=frames).reshape(x.shape[0], x.shape[2], x.shape[1], *x.shape[3:])
    return y.transpose(1, 2)


def _per_position(op: Operation) -> Any:
    x = op.subject
    flat = x.movedim(1, -1).reshape(-1, x.shape[1])
    y = op.again(input=flat).reshape(x.shape[0], *x.shape[2:], x.shape[1])
    return y.movedim(-1, 1)


def _interleaved(op: Operation) -> Any:
    x, count = op.subject, op.given["num_groups"]
    order = torch.arange(x.shape[1]).reshape(-1, count).T.reshape(-1)
    parameters = {name: op.given.get(name) for name in ("weight", "bias")}
    moved = {name: None if p is None else p[order] for name, p in parameters.items()}
    return op.again(input=x[:, order], **moved)[:, torch.argsort(order)]


def _over(axes: tuple[int, ...]) -> Change:
    def change(op: Operation) -> Any:
        variance, mean = torch.var_mean(op.subject, axes, correction=0, keepdim=True)
        return _affine(op, _scaled(op, op.subject, mean, variance), None)

    return change


@probe
def norm_variance(operations: Sequence[Operation]) -> Iterator[Trial]:
    """The one-pass variance in float32, or the variance divided by n - 1."""
    for group in together_and_alone(operations, ("group_norm", "layer_norm")):
        text = "the variance as E[x^2] - E[x]^2 in float32"
        yield Trial("norm_variance", text, all_of(group, _one_pass))
        yield Trial("norm_variance", "the variance divided by n - 1", all_of(group, _unbiased))


def _grouped(op: Operation) -> tuple[torch.Tensor, tuple[int, ...], tuple[int, ...] | None]:
    """The input with one axis or more to go over, these axes, and the shape of the parameters."""
    x = op.subject
    if op.name == "group_norm":
        grouped = x.reshape(x.shape[0], op.given["num_groups"], -1)
        return grouped, (2,), (1, -1) + (1,) * (x.ndim - 2)
    own = len(op.given["normalized_shape"])
    return x, tuple(range(x.ndim - own, x.ndim)), None


def _one_pass(op: Operation) -> Any:
    x, axes, shape = _grouped(op)
    single = x.float()
    mean = single.mean(axes, keepdim=True)
    variance = (single.square().mean(axes, keepdim=True) - mean.square()).clamp(min=0)
    return _affine(op, _scaled(op, x, mean.double(), variance.double()), shape)


def _unbiased(op: Operation) -> Any:
    x, axes, shape = _grouped(op)
    variance, mean = torch.var_mean(x, axes, correction=1, keepdim=True)
    return _affine(op, _scaled(op, x, mean, variance), shape)


def _scaled(
    op: Operation, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
) -> torch.Tensor:
    eps = op.given.get("eps")
    return (x - mean) * torch.rsqrt(variance + (1e-5 if eps is None else eps))


def _affine(op: Operation, y: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor:
    y = y.reshape(op.subject.shape)
    weight, bias = op.given.get("weight"), op.given.get("bias")
    if weight is not None:
        y = y * (weight.reshape(shape) if shape else weight)
    if bias is not None:
        y = y + (bias.reshape(shape) if shape else bias)
    return y


def group_factors(op: Operation, plain: Array, port: Array) -> tuple[float, float] | None:
    """Signature of a wrong variance: every group of every sample is off by a factor of its own.

    `plain` and `port` are the right and the port's output, channel-last. Returns what is left of
    the error if these factors are taken out, and the relative error that the variance in one pass
    would make; `None` if the operation is no such norm. The rounding of the one-pass variance
    depends on the order of summation, so that it can be recognised and not repeated.
    """
    if op.name not in ("group_norm", "layer_norm") or plain.shape != port.shape:
        return None
    weight, bias = (None if p is None else p.numpy() for p in map(op.given.get, ("weight", "bias")))
    right, wrong = (
        (y - (0 if bias is None else bias)) / (1 if weight is None else weight)
        for y in (plain.astype(np.float64), port.astype(np.float64))
    )
    axes: tuple[int, ...] = (1, 3)
    if op.name == "group_norm":
        groups = op.given["num_groups"]
        shape = (right.shape[0], -1, groups, right.shape[-1] // groups)
        right, wrong = right.reshape(shape), wrong.reshape(shape)
    else:
        axes = tuple(range(right.ndim - len(op.given["normalized_shape"]), right.ndim))
    factor = (right * wrong).sum(axes, keepdims=True) / (right * right).sum(axes, keepdims=True)
    error = float(np.linalg.norm(wrong - right))
    left = float(np.linalg.norm(wrong - factor * right)) / error if error else float("inf")
    exact = op.result()
    return left, float((_one_pass(op) - exact).norm() / exact.norm())


@probe
def norm_buffers(operations: Sequence[Operation]) -> Iterator[Trial]:
    """Statistics of the batch instead of the stored ones, or the stored variance rescaled."""
    for group in together_and_alone(operations, ("batch_norm",)):
        text = "statistics of the batch instead of the stored ones"
        change = again(running_mean=None, running_var=None, training=True)
        yield Trial("norm_buffers", text, all_of(group, change))
        n = group[0].subject.numel() // group[0].subject.shape[1]
        for factor, text in ((n / (n - 1), "n / (n - 1)"), ((n - 1) / n, "(n - 1) / n")):
            change = _rescaled(factor)
            yield Trial("norm_buffers", f"the stored variance times {text}", all_of(group, change))


def _rescaled(factor: float) -> Change:
    return lambda op: op.again(running_var=op.given["running_var"] * factor)


@probe
def softmax_axis(operations: Sequence[Operation]) -> Iterator[Trial]:
    """A softmax over another axis."""
    for group in together_and_alone(operations, ("softmax", "log_softmax")):
        for axis in range(group[0].subject.ndim):
            text = f"{group[0].name} over axis {axis}"
            yield Trial("norm_axes", text, all_of(group, again(dim=axis)))
