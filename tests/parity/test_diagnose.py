"""What the zoo does not reach: operations written out, and what nothing explains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.diagnose.probe import PROBES
from tests.nets import torch_of
from tests.ports import nnx_of

X = np.random.default_rng(3).standard_normal((2, 6, 7, 5)).astype(np.float32)
NOISE = np.random.default_rng(5).standard_normal((2, 7, 5, 6)).astype(np.float32)
VIDEO = np.random.default_rng(4).standard_normal((1, 4, 5, 6, 7)).astype(np.float32)


def compare(theirs, ours, x=X):
    reference, port = torch_of(lambda _, x: theirs(x)), nnx_of(lambda _, x: ours(x))
    return parity.compare(reference, port, (x,), check_compiled=False).first_fault


def test_an_epsilon_under_a_root():
    def port(eps):
        return lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)

    def reference(x):
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)

    small = X * 1e-2
    assert compare(reference, port(1e-6), small) is None
    fault = compare(reference, port(1e-5), small)
    assert fault.cause == "epsilon"
    assert "1e-05 instead of 1e-06 added" in fault.evidence


def test_an_activation_in_place():
    fault = compare(
        lambda x: torch.nn.functional.relu(x.clone(), inplace=True),
        lambda x: jax.nn.leaky_relu(x, 0.01),
    )
    assert fault.cause == "activation"


def test_an_operation_called_as_a_method():
    def port(x):
        return jax.nn.softmax(x, 1) + jnp.clip(x, -0.5, 0.5)

    right = compare(lambda x: x.softmax(2) + x.clamp(-0.5, 0.5), port)
    fault = compare(lambda x: x.softmax(1) + x.clamp(-0.5, 0.5), port)
    assert right is None
    assert fault.cause == "norm_axes"
    assert "softmax over axis 2 explains 100 %" in fault.evidence


def test_frames_put_in_front():
    def reference(x):
        return torch.cat([x[:, :, :1], x[:, :, :1], x], 2)

    def zeros(x):
        return jnp.concatenate([jnp.zeros_like(x[:, :2]), x], 1)

    def behind(x):
        return jnp.concatenate([x, x[:, :1], x[:, :1]], 1)

    def half(x):
        return jnp.concatenate([x[:, :1], x, x[:, -1:]], 1)

    assert compare(reference, zeros, VIDEO).cause == "padding"
    assert compare(reference, behind, VIDEO).cause == "causal_side"
    assert compare(reference, half, VIDEO).cause == "causal_side"


def test_frames_kept_for_the_next_chunk():
    def reference(x):
        return x * 2, x[:, :, -2:].clone()

    for wrong in (
        lambda x: (x * 2, x[:, -3:-1]),
        lambda x: (x * 2, x[:, :2]),
        lambda x: (x * 2, jnp.repeat(x[:, :1], 2, 1)),
    ):
        assert compare(reference, wrong, VIDEO).cause == "cache"


def test_a_change_that_breaks_what_is_right_explains_nothing():
    def reference(x):
        return torch.cat([x[:, :, :1], x], 2), x[:, :, -1:].clone()

    def port(x):  # the first frame as the cache: as if joined in opposite order, but for output 0
        return jnp.concatenate([x[:, :1], x], 1), x[:, :1]

    assert compare(reference, port, VIDEO).cause == "cache"


def test_pooling_resizing_and_order():
    def pooled(x):
        return torch.nn.functional.avg_pool2d(x, 2)

    def larger(x):
        return torch.nn.functional.interpolate(x, scale_factor=2.0)

    x = X[..., :6, :4]
    shape = (2, 12, 8, 6)
    assert compare(pooled, lambda x: _windows(x).sum((2, 4)), x).cause == "pooling"
    assert compare(larger, lambda x: jnp.tile(x, (1, 2, 2, 1)), x).cause == "reshape_order"
    assert compare(larger, lambda x: jax.image.resize(x, shape, "linear"), x).cause == "resize"


def _windows(x):
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c)


@pytest.mark.parametrize(
    ("port", "cause", "words"),
    [
        (lambda x: jnp.sin(x)[..., ::-1], "reshape_order", "axis 3 in opposite order"),
        (lambda x: jnp.sin(x).swapaxes(1, 2), "reshape_order", "axes 1 and 2 exchanged"),
        (lambda x: jnp.clip(jnp.sin(x), -0.5, 0.25), "clamp", "at least -0.5 and at most 0.25"),
        (lambda x: jnp.sin(x).astype(jnp.bfloat16).astype(x.dtype), "dtype", "bfloat16"),
        (lambda x: 2 * jnp.sin(x) + 1, "scale_or_offset", "a factor 2"),
    ],
)
def test_what_the_arrays_alone_show(port, cause, words):
    fault = compare(torch.sin, port, X[..., :5, :5])
    assert fault.cause == cause
    assert words in fault.evidence


def test_a_norm_without_its_parameters_or_with_another_scale():
    weight, bias = (np.linspace(a, b, 6, dtype=np.float32) for a, b in ((0.5, 1.5), (-1, 1)))

    def reference(x):
        return torch.nn.functional.group_norm(
            x, 2, torch.from_numpy(weight).to(x), torch.from_numpy(bias).to(x), 1e-6
        )

    def normed(x):
        groups = x.reshape(*x.shape[:-1], 2, -1)
        centred = groups - groups.mean((1, 2, 4), keepdims=True)
        variance = (centred**2).mean((1, 2, 4), keepdims=True)
        return (centred * jax.lax.rsqrt(variance + 1e-6)).reshape(x.shape)

    def row(values):
        return jnp.asarray(values).reshape(1, 1, 1, -1)

    for port, words in (
        (normed, "leaving out weight and bias"),
        (lambda x: normed(x) * (1 + row(weight)) + row(bias), "1 added to the weight"),
    ):
        fault = compare(reference, port)
        assert fault.cause == "scale_or_offset"
        assert words in fault.evidence


def test_what_nothing_explains_is_unknown():
    fault = compare(torch.sin, lambda x: jnp.cos(3 * x))
    assert fault.cause == "unknown"
    assert "of the reference explains it" in fault.evidence


def test_what_nothing_explains_behind_a_norm_of_other_channels_is_unknown():
    def reference(x):
        weight, bias = torch.ones(6).to(x), torch.zeros(6).to(x)
        return torch.sin(torch.nn.functional.group_norm(x, 2, weight, bias)[:, :4])

    fault = compare(reference, lambda x: jnp.cos(3 * x[..., :4]))
    assert fault.cause == "unknown"
    assert "of the reference explains it" in fault.evidence


def test_shapes_types_and_infinities():
    assert compare(lambda x: x * 2, lambda x: (x * 2)[:, :3]).cause == "shape"
    assert compare(lambda x: x * 2, lambda x: jnp.round(x * 2).astype(int)).cause == "dtype"
    fault = compare(lambda x: x * 2, lambda x: jnp.where(x > 1, jnp.inf, x * 2))
    assert fault.cause == "nonfinite"


def test_a_broken_probe_is_said_and_does_no_harm():
    def broken(operations):
        raise KeyError("lost")
        yield

    PROBES.insert(0, broken)
    try:
        fault = compare(torch.sin, lambda x: jnp.cos(3 * x))
    finally:
        PROBES.remove(broken)
    assert "broken probes: broken (KeyError('lost'))" in fault.evidence


def test_a_doubtful_norm_is_a_fault_if_one_change_accounts_for_it():
    reference = torch.nn.GroupNorm(2, 6, eps=1e-6)

    def port(eps, noise=0.0):
        class Port(nnx.Module):
            def __init__(self):
                self.scale, self.bias = nnx.Param(jnp.ones(6)), nnx.Param(jnp.zeros(6))

            def __call__(self, x):
                groups = x.reshape(*x.shape[:-1], 2, -1)
                centred = groups - groups.mean((1, 2, 4), keepdims=True)
                variance = (centred**2).mean((1, 2, 4), keepdims=True)
                y = (centred * jax.lax.rsqrt(variance + eps)).reshape(x.shape)
                return y + noise * jnp.asarray(NOISE)

        return Port()

    noise = 4e-6  # as large as what the other epsilon makes of inputs of variance 1
    right = parity.compare(reference, port(1e-6), (X,))
    careless = parity.compare(reference, port(1e-6, noise), (X,))
    other = parity.compare(reference, port(1e-5), (X,))
    assert (right.verdict, careless.verdict) == ("PASS", "WARN")
    assert other.table.R.iloc[0] < 30  # no more than rounding may be
    assert [fault.cause for fault in other.faults] == ["epsilon"]


@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0])
def test_flaxs_default_epsilon_in_a_layer_norm(scale):
    """So little that a wrong value explains some of it: the right one has to explain more."""
    x = scale * np.random.default_rng(0).standard_normal((2, 10, 32)).astype(np.float32)
    reference = torch.nn.LayerNorm(32).eval()

    def found(epsilon):
        port = nnx.LayerNorm(32, epsilon=epsilon, use_fast_variance=False, rngs=nnx.Rngs(0))
        return parity.compare(reference, port, (x,), check_compiled=False).first_fault

    assert found(1e-5) is None
    for epsilon in (1e-6, 1e-4):
        fault = found(epsilon)
        assert fault.cause == "epsilon"
        assert f"eps={epsilon:g} instead of 1e-05" in fault.evidence


def test_an_average_for_a_maximum():
    x = X[:, :, :6, :4]
    for reference in (torch.nn.MaxPool2d(2), lambda x: torch.nn.functional.max_pool2d(x, 2)):
        fault = compare(reference, lambda x: nnx.avg_pool(x, (2, 2), (2, 2)), x)
        assert fault.cause == "pooling"
        assert "avg_pool2d instead of max_pool2d" in fault.evidence


ANGLES = np.outer(np.arange(7), 0.5 ** np.arange(2)).astype(np.float32)
HEAD = np.random.default_rng(6).standard_normal((2, 7, 4)).astype(np.float32)


def rotated_halves(x):
    """With the angles of both halves in one table, as LLaMA's code has it."""
    table = torch.from_numpy(ANGLES)
    table = torch.cat((table, table), dim=-1)
    other = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)
    return x * table.cos() + other * table.sin()


def rotated_neighbours(x):
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = torch.from_numpy(ANGLES).cos(), torch.from_numpy(ANGLES).sin()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def rotation(interleaved):
    def port(x):
        cos, sin = jnp.cos(ANGLES)[None], jnp.sin(ANGLES)[None]
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
        parts = a * cos - b * sin, b * cos + a * sin
        return jnp.stack(parts, -1).reshape(x.shape) if interleaved else jnp.concat(parts, axis=-1)

    return port


@pytest.mark.parametrize(
    ("reference", "interleaved", "words"),
    [
        (rotated_halves, True, "channels paired with their neighbours"),
        (rotated_neighbours, False, "channels paired with those of the other half"),
    ],
)
def test_a_rotary_embedding_of_other_pairs(reference, interleaved, words):
    assert compare(reference, rotation(not interleaved), HEAD) is None
    fault = compare(reference, rotation(interleaved), HEAD)
    assert fault.cause == "rotary"
    assert words in fault.evidence


def _array_split(x, bins):
    for axis, count in zip((1, 2), bins, strict=True):
        parts = np.array_split(np.arange(x.shape[axis]), count)
        means = [jnp.take(x, part, axis).mean(axis) for part in parts]
        x = jnp.stack(means, axis)
    return x


def _patches(x, order):
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // 2, 2, w // 2, 2)
    return x.permute(*order) if isinstance(x, torch.Tensor) else x.transpose(order)


def _torch_patches(x):
    return _patches(x, (0, 2, 4, 1, 3, 5)).flatten(3).permute(0, 3, 1, 2)


def _port_patches(x):
    y = _patches(jnp.moveaxis(x, -1, 1), (0, 2, 4, 3, 5, 1))
    return y.reshape(*y.shape[:3], -1)


def _port_columns(x):
    y = _patches(jnp.moveaxis(x, -1, 1), (0, 3, 5, 1, 2, 4))
    return y.reshape(len(x), -1, y.shape[-1] * y.shape[-2])


KERNEL = np.random.default_rng(7).standard_normal((6, 6, 3, 3)).astype(np.float32)


def _transposed(x):
    kernel = jnp.asarray(KERNEL.transpose(2, 3, 1, 0))  # (in, out) as (out, in), nothing flipped
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_transpose(x, kernel, (2, 2), "VALID", dimension_numbers=numbers)


@pytest.mark.parametrize(
    ("reference", "port", "cause", "words"),
    [
        (
            lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (4, 3)),
            lambda x: _array_split(x, (4, 3)),
            "pooling",
            "the first are larger",
        ),
        (
            lambda x: torch.cat([x, x], 1),
            lambda x: jnp.repeat(x, 2, -1),
            "reshape_order",
            "entries repeated for copies",
        ),
        (_torch_patches, _port_patches, "reshape_order", "flatten with axes in the order"),
        (
            lambda x: torch.nn.functional.unfold(x, 2, stride=2),
            _port_columns,
            "reshape_order",
            "in unfold",
        ),
        (
            lambda x: x.flatten(0, 1).softmax(-1).unflatten(0, (2, 6)),
            lambda x: jax.nn.softmax(x, -1),
            "norm_axes",
            "softmax over each 6 of axis 0",
        ),
        (
            lambda x: torch.nn.functional.conv_transpose2d(x, torch.tensor(KERNEL).to(x), stride=2),
            _transposed,
            "weights_layout",
            "the kernel flipped, with its channels swapped",
        ),
    ],
    ids=["bins", "copies", "patches", "columns", "heads", "transposed"],
)
def test_other_orders_and_windows(reference, port, cause, words):
    x = np.random.default_rng(8).standard_normal((2, 6, 6, 4)).astype(np.float32)
    fault = compare(reference, port, x)
    assert fault.cause == cause, fault.evidence
    assert words in fault.evidence
