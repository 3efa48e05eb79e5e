"""Every row of the tables in docs/pytorch-to-jax.md against PyTorch.

A row has what PyTorch computes, in the port's layout, what the counterpart computes, and mostly a
third: what its trap gives, which must be something else. Rows are named by the first column.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flax import nnx

DOCUMENT = Path(__file__).parents[1] / "docs" / "pytorch-to-jax.md"
RNG = np.random.default_rng(0)
C, H, W = 4, 6, 5
IMAGE = RNG.standard_normal((2, C, H, W)).astype(np.float32)
LINE = IMAGE[:, :, :, 0]
TOKENS = IMAGE.reshape(2, -1, C)
T_IMAGE, T_LINE, T_TOKENS = map(torch.from_numpy, (IMAGE, LINE, TOKENS))
X, XLINE, XTOKENS = jnp.moveaxis(IMAGE, 1, -1), jnp.moveaxis(LINE, 1, -1), jnp.asarray(TOKENS)


@dataclass(frozen=True)
class Row:
    theirs: Callable[[], object]
    ours: Callable[[], object]
    trap: Callable[[], object] | None = None
    off: float = 2e-6


ROWS: dict[str, Row] = {}


def row(name, theirs, ours, trap=None, **options):
    assert name not in ROWS
    ROWS[name] = Row(theirs, ours, trap, **options)


def last(tensor):
    """In the port's layout."""
    return np.moveaxis(tensor.numpy(force=True), 1, -1)


def arr(tensor):
    return jnp.asarray(tensor.numpy(force=True))


def given(module, **leaves):
    """The NNX module with these values."""
    for name, value in leaves.items():
        leaf = getattr(module, name)
        assert leaf.shape == value.shape, name
        leaf[...] = value
    return module.eval() or module


def made(kind, *args, **options):
    """A PyTorch module in evaluation mode whose vectors are not 0 and 1."""
    torch.manual_seed(0)
    module = kind(*args, **options).eval()
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if tensor.ndim == 1:
                tensor.normal_(1.0 if name == "weight" else 0.0, 0.3)
        for name, tensor in module.named_buffers():
            if name.startswith("running"):
                tensor.uniform_(0.5, 1.5)
    return module


# Convolutions

PERMUTED = {1: (2, 1, 0), 2: (2, 3, 1, 0), 3: (2, 3, 4, 1, 0)}


def conv(module, kind=nnx.Conv, permuted=None, **options):
    rank = module.weight.ndim - 2
    kernel = arr(module.weight).transpose(permuted or PERMUTED[rank])
    ported = kind(
        module.in_channels, module.out_channels, module.kernel_size, rngs=nnx.Rngs(0), **options
    )
    return given(ported, kernel=kernel, bias=arr(module.bias))


CONV1 = made(torch.nn.Conv1d, C, 3, 3, stride=2, padding=1)
CONV2 = made(torch.nn.Conv2d, C, C, 3, stride=2, padding=1)
CONV3 = made(torch.nn.Conv3d, 2, 3, 3, padding=1)
VOLUME = RNG.standard_normal((1, 2, 3, 4, 4)).astype(np.float32)
row("Conv1d", lambda: last(CONV1(T_LINE)), lambda: conv(CONV1, strides=2, padding=1)(XLINE),
    lambda: conv(CONV1, strides=2)(XLINE))  # fmt: skip
row("Conv2d", lambda: last(CONV2(T_IMAGE)), lambda: conv(CONV2, strides=2, padding=1)(X),
    lambda: conv(CONV2, strides=2, padding=1, permuted=(3, 2, 1, 0))(X))  # fmt: skip
row("Conv3d", lambda: last(CONV3(torch.from_numpy(VOLUME))),
    lambda: conv(CONV3, padding=1)(jnp.moveaxis(VOLUME, 1, -1)))  # fmt: skip
GROUPED = made(torch.nn.Conv2d, C, C, 3, padding=1, groups=C)
row("Conv2d, groups=", lambda: last(GROUPED(T_IMAGE)),
    lambda: conv(GROUPED, padding=1, feature_group_count=C)(X))  # fmt: skip
DILATED = made(torch.nn.Conv2d, C, 3, 3, padding=2, dilation=2)
row("Conv2d, dilation=", lambda: last(DILATED(T_IMAGE)),
    lambda: conv(DILATED, padding=2, kernel_dilation=2)(X))  # fmt: skip
REFLECTED = made(torch.nn.Conv2d, C, 3, 3, padding=1, padding_mode="reflect")
row("Conv2d, padding_mode=", lambda: last(REFLECTED(T_IMAGE)),
    lambda: conv(REFLECTED, padding="VALID")(pad(X, mode="reflect")),
    lambda: conv(REFLECTED, padding=1)(X))  # fmt: skip


def transposed(module, permuted=None):
    spatial = zip(module.kernel_size, module.padding, module.output_padding, strict=True)
    padding = [(k - 1 - p, k - 1 - p + o) for k, p, o in spatial]
    return conv(
        module, nnx.ConvTranspose, permuted, strides=module.stride, padding=padding,
        transpose_kernel=True,
    )  # fmt: skip


UP1 = made(torch.nn.ConvTranspose1d, C, 3, 4, stride=2, padding=1)
UP2 = made(torch.nn.ConvTranspose2d, C, C, 3, stride=2, padding=1, output_padding=1)
UP3 = made(torch.nn.ConvTranspose3d, 2, 3, 2, stride=2)
row("ConvTranspose1d", lambda: last(UP1(T_LINE)), lambda: transposed(UP1)(XLINE))
row("ConvTranspose2d", lambda: last(UP2(T_IMAGE)), lambda: transposed(UP2)(X),
    lambda: transposed(UP2, (2, 3, 0, 1))(X))  # fmt: skip
row("ConvTranspose3d", lambda: last(UP3(torch.from_numpy(VOLUME))),
    lambda: transposed(UP3)(jnp.moveaxis(VOLUME, 1, -1)))  # fmt: skip

# Linear, embedding, attention

LINEAR = made(torch.nn.Linear, C, C)


def linear(module, kernel, x):
    ported = nnx.Linear(*kernel.shape, rngs=nnx.Rngs(0))
    return given(ported, kernel=kernel, bias=arr(module.bias))(x)


row("Linear", lambda: LINEAR(T_TOKENS).numpy(force=True),
    lambda: linear(LINEAR, arr(LINEAR.weight).T, XTOKENS),
    lambda: linear(LINEAR, arr(LINEAR.weight), XTOKENS))  # fmt: skip
FLAT = made(torch.nn.Linear, C * H * W, 3)


def flattened(reordered):
    kernel = arr(FLAT.weight).T
    if reordered:
        kernel = arr(FLAT.weight).reshape(3, C, H, W).transpose(2, 3, 1, 0).reshape(-1, 3)
    return linear(FLAT, kernel, X.reshape(2, -1))


row("Flatten, then Linear", lambda: FLAT(T_IMAGE.flatten(1)).numpy(force=True),
    lambda: flattened(True), lambda: flattened(False))  # fmt: skip
TABLE = made(torch.nn.Embedding, 7, C)
IDS = np.array([[1, 3], [6, 0]])
row("Embedding", lambda: TABLE(torch.from_numpy(IDS)).numpy(force=True),
    lambda: given(nnx.Embed(7, C, rngs=nnx.Rngs(0)), embedding=arr(TABLE.weight))(IDS))  # fmt: skip
HEADS = made(torch.nn.MultiheadAttention, C, 2, batch_first=True)
MASK = np.tril(np.ones((H * W, H * W), bool))


def heads(mask=None):
    ported = nnx.MultiHeadAttention(2, C, decode=False, rngs=nnx.Rngs(0))
    weights, biases = arr(HEADS.in_proj_weight), arr(HEADS.in_proj_bias)
    for name, w, b in zip(("query", "key", "value"), jnp.split(weights, 3), jnp.split(biases, 3),
                          strict=True):  # fmt: skip
        given(getattr(ported, name), kernel=w.T.reshape(C, 2, -1), bias=b.reshape(2, -1))
    out = HEADS.out_proj
    given(ported.out, kernel=arr(out.weight).T.reshape(2, -1, C), bias=arr(out.bias))
    return ported.eval() or ported(XTOKENS, mask=mask)


row("MultiheadAttention", lambda: HEADS(T_TOKENS, T_TOKENS, T_TOKENS)[0].numpy(force=True), heads)
row("MultiheadAttention, attn_mask=",
    lambda: HEADS(T_TOKENS, T_TOKENS, T_TOKENS, attn_mask=torch.from_numpy(~MASK))[0].numpy(
        force=True),
    lambda: heads(MASK), lambda: heads(~MASK | np.eye(H * W, dtype=bool)))  # fmt: skip
QUERY = RNG.standard_normal((1, 2, 5, 4)).astype(np.float32)  # (batch, heads, tokens, size)
T_QUERY, XQUERY = torch.from_numpy(QUERY), jnp.asarray(QUERY.swapaxes(1, 2))
row("scaled_dot_product_attention",
    lambda: F.scaled_dot_product_attention(T_QUERY, T_QUERY, T_QUERY, is_causal=True).transpose(
        1, 2).numpy(),
    lambda: jax.nn.dot_product_attention(XQUERY, XQUERY, XQUERY, is_causal=True),
    lambda: jax.nn.dot_product_attention(QUERY, QUERY, QUERY, is_causal=True).swapaxes(
        1, 2))  # fmt: skip

# Norms


def norm(kind, module, **options):
    options = {"epsilon": 1e-5, "use_fast_variance": False, "rngs": nnx.Rngs(0)} | options
    return given(kind(C, **options), scale=arr(module.weight), bias=arr(module.bias))


SMALL, T_SMALL = X * 1e-3, T_IMAGE * 1e-3  # where an epsilon shows
GROUP = made(torch.nn.GroupNorm, 2, C)
LAYER = made(torch.nn.LayerNorm, C)
BATCH = made(torch.nn.BatchNorm2d, C)
INSTANCE = made(torch.nn.InstanceNorm2d, C, affine=True)
RMS = made(torch.nn.RMSNorm, C)
row("GroupNorm", lambda: last(GROUP(T_SMALL)),
    lambda: norm(nnx.GroupNorm, GROUP, num_groups=2)(SMALL),
    lambda: norm(nnx.GroupNorm, GROUP, num_groups=2, epsilon=1e-6)(SMALL))  # fmt: skip
row("GroupNorm, a large mean", lambda: last(GROUP(T_IMAGE + 100)),
    lambda: norm(nnx.GroupNorm, GROUP, num_groups=2)(X + 100),
    lambda: norm(nnx.GroupNorm, GROUP, num_groups=2, use_fast_variance=True)(X + 100),
    off=1e-4)  # fmt: skip
row("LayerNorm", lambda: LAYER(T_SMALL.movedim(1, -1)).numpy(force=True),
    lambda: norm(nnx.LayerNorm, LAYER)(SMALL),
    lambda: norm(nnx.LayerNorm, LAYER, epsilon=1e-6)(SMALL))  # fmt: skip
row("InstanceNorm2d", lambda: last(INSTANCE(T_IMAGE)),
    lambda: norm(nnx.InstanceNorm, INSTANCE)(X))  # fmt: skip
row("RMSNorm", lambda: RMS(T_SMALL.movedim(1, -1)).numpy(force=True),
    lambda: given(nnx.RMSNorm(C, epsilon=2.0**-23, rngs=nnx.Rngs(0)), scale=arr(RMS.weight))(SMALL),
    lambda: given(nnx.RMSNorm(C, rngs=nnx.Rngs(0)), scale=arr(RMS.weight))(SMALL))  # fmt: skip


def batch_norm(train=False):
    ported = norm(nnx.BatchNorm, BATCH, momentum=0.9)
    given(ported, mean=arr(BATCH.running_mean), var=arr(BATCH.running_var))
    return ported.train() or ported if train else ported


def after_a_step(kind):
    theirs = made(torch.nn.BatchNorm2d, C).train()
    theirs(T_IMAGE)
    return kind(theirs)


def ours_after_a_step():
    ported = batch_norm(train=True)
    ported(X)
    return ported


N = 2 * H * W
row("BatchNorm2d", lambda: last(BATCH(T_IMAGE)), lambda: batch_norm()(X),
    lambda: batch_norm(train=True)(X))  # fmt: skip
row("BatchNorm2d, momentum=", lambda: after_a_step(lambda m: m.running_mean.numpy()),
    lambda: ours_after_a_step().mean[...])  # fmt: skip
row("BatchNorm2d, running_var", lambda: after_a_step(lambda m: m.running_var.numpy()),
    lambda: 0.9 * arr(BATCH.running_var) + 0.1 * X.var((0, 1, 2), ddof=1),
    lambda: ours_after_a_step().var[...])  # fmt: skip

# Padding, pooling, resizing


def pad(x, **options):
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), **options)


row("pad, constant", lambda: last(F.pad(T_IMAGE, (0, 1, 2, 0))),
    lambda: jnp.pad(X, ((0, 0), (2, 0), (0, 1), (0, 0))),
    lambda: jnp.pad(X, ((0, 0), (0, 1), (2, 0), (0, 0))))  # fmt: skip
row("pad, reflect", lambda: last(F.pad(T_IMAGE, (1, 1, 1, 1), mode="reflect")),
    lambda: pad(X, mode="reflect"), lambda: pad(X, mode="symmetric"))  # fmt: skip
row("pad, replicate", lambda: last(F.pad(T_IMAGE, (1, 1, 1, 1), mode="replicate")),
    lambda: pad(X, mode="edge"))  # fmt: skip
row("pad, circular", lambda: last(F.pad(T_IMAGE, (1, 1, 1, 1), mode="circular")),
    lambda: pad(X, mode="wrap"))  # fmt: skip
row("max_pool2d", lambda: last(F.max_pool2d(T_IMAGE, 2)),
    lambda: nnx.max_pool(X, (2, 2), strides=(2, 2)), lambda: nnx.max_pool(X, (2, 2)))  # fmt: skip
row("max_pool2d, padding=", lambda: last(F.max_pool2d(T_IMAGE - 9, 3, 2, 1)),
    lambda: nnx.max_pool(X - 9, (3, 3), (2, 2), ((1, 1), (1, 1))),
    lambda: nnx.max_pool(pad(X - 9), (3, 3), (2, 2)))  # fmt: skip
row("avg_pool2d", lambda: last(F.avg_pool2d(T_IMAGE, 3, 2, 1)),
    lambda: nnx.avg_pool(X, (3, 3), (2, 2), ((1, 1), (1, 1))),
    lambda: nnx.avg_pool(X, (3, 3), (2, 2), "SAME"))  # fmt: skip
row("avg_pool2d, count_include_pad=False",
    lambda: last(F.avg_pool2d(T_IMAGE, 3, 2, 1, count_include_pad=False)),
    lambda: nnx.avg_pool(X, (3, 3), (2, 2), ((1, 1), (1, 1)), count_include_pad=False),
    lambda: nnx.avg_pool(X, (3, 3), (2, 2), ((1, 1), (1, 1))))  # fmt: skip
row("adaptive_avg_pool2d, 1", lambda: last(F.adaptive_avg_pool2d(T_IMAGE, 1)),
    lambda: X.mean((1, 2), keepdims=True))  # fmt: skip


def picked(size):
    """PyTorch's nearest: floor(i * in / out)."""
    rows, columns = (np.arange(n) * old // n for n, old in zip(size, (H, W), strict=True))
    return X[:, rows][:, :, columns]


def resized(size, method, **options):
    return jax.image.resize(X, (2, *size, C), method, **options)


def cornered(size):
    at = [jnp.linspace(0, old - 1, n) for n, old in zip(size, (H, W), strict=True)]
    grid = jnp.meshgrid(*at, indexing="ij")
    one = lambda image: jax.scipy.ndimage.map_coordinates(image, grid, order=1)  # noqa: E731
    return jnp.stack([jnp.stack([one(x[..., c]) for c in range(C)], -1) for x in X])


def interpolated(**options):
    return lambda: last(F.interpolate(T_IMAGE, **options))


row("interpolate, a whole factor", interpolated(scale_factor=2),
    lambda: X.repeat(2, axis=1).repeat(2, axis=2),
    lambda: resized((2 * H, 2 * W), "bilinear"))  # fmt: skip
row("interpolate, any size", interpolated(size=(8, 7)), lambda: picked((8, 7)),
    lambda: resized((8, 7), "nearest"))  # fmt: skip
row("interpolate, nearest-exact", interpolated(size=(8, 7), mode="nearest-exact"),
    lambda: resized((8, 7), "nearest"))  # fmt: skip
row("interpolate, bilinear, larger", interpolated(size=(8, 7), mode="bilinear"),
    lambda: resized((8, 7), "bilinear"))  # fmt: skip
row("interpolate, bilinear, smaller", interpolated(size=(3, 4), mode="bilinear"),
    lambda: resized((3, 4), "bilinear", antialias=False),
    lambda: resized((3, 4), "bilinear"))  # fmt: skip
row("interpolate, align_corners=True",
    interpolated(size=(8, 7), mode="bilinear", align_corners=True),
    lambda: cornered((8, 7)), lambda: resized((8, 7), "bilinear"))  # fmt: skip


def shuffled(x, reverse=False):
    n, h, w, c = x.shape
    if reverse:
        return x.reshape(n, h // 2, 2, w, c).transpose(0, 1, 3, 4, 2).reshape(n, h // 2, w, 2 * c)
    return (
        x.reshape(n, h, w, c // 4, 2, 2)
        .transpose(0, 1, 4, 2, 5, 3)
        .reshape(n, 2 * h, 2 * w, c // 4)
    )


def shuffled_in_tensorflow_order(x):
    n, h, w, c = x.shape
    return (
        x.reshape(n, h, w, 2, 2, c // 4)
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(n, 2 * h, 2 * w, c // 4)
    )


EIGHT = RNG.standard_normal((1, 8, 2, 3)).astype(np.float32)
row("pixel_shuffle", lambda: last(F.pixel_shuffle(torch.from_numpy(EIGHT), 2)),
    lambda: shuffled(jnp.moveaxis(EIGHT, 1, -1)),
    lambda: shuffled_in_tensorflow_order(jnp.moveaxis(EIGHT, 1, -1)))  # fmt: skip

# Activations

VALUES = np.linspace(-30, 30, 101, dtype=np.float32)
T_VALUES = torch.from_numpy(VALUES)


def activation(name, theirs, ours, trap=None):
    row(name, lambda: theirs(T_VALUES).numpy(), lambda: ours(VALUES),
        None if trap is None else lambda: trap(VALUES))  # fmt: skip


activation("relu", F.relu, jax.nn.relu)
activation("silu", F.silu, jax.nn.silu)
activation("gelu", F.gelu, lambda x: jax.nn.gelu(x, approximate=False), jax.nn.gelu)
activation("gelu, approximate='tanh'", lambda x: F.gelu(x, approximate="tanh"), jax.nn.gelu)
activation("quick gelu", lambda x: x * torch.sigmoid(1.702 * x),
           lambda x: x * jax.nn.sigmoid(1.702 * x), jax.nn.gelu)  # fmt: skip
activation("leaky_relu", F.leaky_relu, jax.nn.leaky_relu)
activation("elu", F.elu, jax.nn.elu)
activation("selu", F.selu, jax.nn.selu)
activation("softplus", F.softplus, jax.nn.softplus)
activation("softplus, beta=", lambda x: F.softplus(x, beta=2), lambda x: jax.nn.softplus(2 * x) / 2,
           jax.nn.softplus)  # fmt: skip
activation("mish", F.mish, jax.nn.mish)
activation("hardswish", F.hardswish, jax.nn.hard_swish)
activation("hardsigmoid", F.hardsigmoid, jax.nn.hard_sigmoid)
activation("tanh", torch.tanh, jnp.tanh)
activation("clamp", lambda x: x.clamp(-1, 2), lambda x: jnp.clip(x, -1, 2))
row("softmax", lambda: last(F.softmax(T_IMAGE, 1)), lambda: jax.nn.softmax(X, axis=-1),
    lambda: jax.nn.softmax(X, axis=1))  # fmt: skip
row("glu", lambda: last(F.glu(T_IMAGE, 1)), lambda: jax.nn.glu(X, axis=-1),
    lambda: X[..., 2:] * jax.nn.sigmoid(X[..., :2]))  # fmt: skip
PRELU = made(torch.nn.PReLU, C)
row("PReLU", lambda: last(PRELU(T_IMAGE)),
    lambda: jnp.where(X > 0, X, X * arr(PRELU.weight)[None, None, None]))  # fmt: skip

# Arrays

SQUARE = IMAGE[0, 0]
T_SQUARE = torch.from_numpy(SQUARE)


def array(name, theirs, ours, trap=None):
    row(name, lambda: theirs(T_SQUARE).numpy(), lambda: ours(jnp.asarray(SQUARE)),
        None if trap is None else lambda: trap(jnp.asarray(SQUARE)))  # fmt: skip


array("var, std", lambda x: x.var(0), lambda x: x.var(0, ddof=1), lambda x: x.var(0))
array("median", lambda x: x.median(0).values, lambda x: jnp.sort(x, 0)[(x.shape[0] - 1) // 2],
      lambda x: jnp.median(x, 0))  # fmt: skip
array("split", lambda x: x.split(2, 0)[0], lambda x: jnp.split(x, x.shape[0] // 2)[0],
      lambda x: jnp.split(x, 2)[0])  # fmt: skip
array("chunk", lambda x: x.chunk(2, 1)[0], lambda x: x[:, : -(-x.shape[1] // 2)])
array("repeat", lambda x: x.repeat(2, 1), lambda x: jnp.tile(x, (2, 1)),
      lambda x: jnp.repeat(x, 2, 0))  # fmt: skip
array("repeat_interleave", lambda x: x.repeat_interleave(2, 0), lambda x: jnp.repeat(x, 2, 0))
array("gather", lambda x: x.gather(0, torch.tensor([[2, 0, 1, 1, 5]])),
      lambda x: jnp.take_along_axis(x, jnp.array([[2, 0, 1, 1, 5]]), 0))  # fmt: skip
array("masked_fill", lambda x: x.masked_fill(x > 0, -1.0), lambda x: jnp.where(x > 0, -1.0, x))
array("scatter_add_", lambda x: x.clone().index_add_(0, torch.tensor([1, 1]), x[:2]),
      lambda x: x.at[jnp.array([1, 1])].add(x[:2]))  # fmt: skip
array("assignment", lambda x: x.clone().index_fill_(0, torch.tensor([2]), 7.0),
      lambda x: x.at[2].set(7.0), lambda x: x.at[8].set(7.0))  # fmt: skip
row("meshgrid", lambda: torch.meshgrid(torch.arange(3.0), torch.arange(2.0), indexing="ij")[0]
    .numpy(), lambda: jnp.meshgrid(jnp.arange(3.0), jnp.arange(2.0), indexing="ij")[0],
    lambda: jnp.meshgrid(jnp.arange(3.0), jnp.arange(2.0))[0])  # fmt: skip
array("normalize", lambda x: F.normalize(x * 1e-14, dim=1),
      lambda x: x * 1e-14 / jnp.maximum(jnp.linalg.norm(x * 1e-14, axis=1, keepdims=True), 1e-12),
      lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True))  # fmt: skip
row("Dropout", lambda: torch.nn.Dropout(0.5).eval()(T_IMAGE).movedim(1, -1).numpy(),
    lambda: evaluated(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))(X),
    lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0))(X))  # fmt: skip


def evaluated(module):
    module.eval()
    return module


def close(a, b, off):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return a.shape == b.shape and np.allclose(a, b, rtol=2e-5, atol=off)


@cache
def in_pytorch(name):
    return ROWS[name].theirs()


@pytest.mark.parametrize("name", ROWS)
def test_counterpart(name):
    theirs, ours = in_pytorch(name), jax.jit(ROWS[name].ours)()
    assert close(theirs, ours, ROWS[name].off), np.abs(np.asarray(theirs) - np.asarray(ours)).max()


@pytest.mark.parametrize("name", [name for name, one in ROWS.items() if one.trap])
def test_trap(name):
    assert not close(in_pytorch(name), jax.jit(ROWS[name].trap)(), ROWS[name].off)


def test_every_row_is_tested():
    shown = re.findall(r"^\| `([^`]+)` \|", DOCUMENT.read_text(), re.M)
    assert sorted(shown) == sorted(ROWS)
