"""Queries, keys and values fused head by head on one side, drawn in heads, groups and order."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity.core.tensors import Tensor, TensorPart
from parity.weights.weight_map import make_weight_map

WIDTH, SIZE = 12, 4


@dataclass(frozen=True)
class Form:
    """How a side holds the projections: each alone, one behind the other, or group by group."""

    how: str
    groups: int
    each: int
    order: str
    taken: str = "qkv"

    def lengths(self):
        """Heads of each part in a group, in order."""
        return [self.each if one == "q" else 1 for one in self.order]

    def joined(self, parts):
        """Arrays by name: those of q, k and v, (heads * size, ...), as they are held."""
        if self.how == "alone":
            return dict(parts)
        groups = self.groups if self.how == "woven" else 1
        held = [parts[one].reshape(groups, -1, *parts[one].shape[1:]) for one in self.order]
        return {"qkv": np.concatenate(held, 1).reshape(-1, *held[0].shape[2:])}

    def heads(self, projected):
        """q, k and v as (item, time, group, heads in it, size) of what is projected by name."""
        if self.how == "alone":
            first = projected["q"].shape[:2]
            return [projected[one].reshape(*first, self.groups, -1, SIZE) for one in self.taken]
        x = projected["qkv"]
        ends = np.cumsum([0, *self.lengths()])
        if self.how == "woven":
            x = x.reshape(*x.shape[:2], self.groups, -1, SIZE)
            found = {
                one: x[:, :, :, a:b] for one, a, b in zip(self.order, ends, ends[1:], strict=False)
            }
        else:
            step = self.groups * SIZE
            found = {
                one: x[..., a * step : b * step].reshape(*x.shape[:2], self.groups, -1, SIZE)
                for one, a, b in zip(self.order, ends, ends[1:], strict=False)
            }
        return [found[one] for one in self.taken]


class TorchAttention(torch.nn.Module):
    def __init__(self, form, weights, biases):
        super().__init__()
        self.form = form
        for name, weight in form.joined(weights).items():
            layer = torch.nn.Linear(WIDTH, len(weight))
            layer.weight.data = torch.from_numpy(weight)
            layer.bias.data = torch.from_numpy(form.joined(biases)[name])
            setattr(self, name, layer)
        self.out = torch.nn.Linear(form.groups * form.each * SIZE, WIDTH)

    def forward(self, x):
        q, k, v = self.form.heads(
            {name: own(x) for name, own in self.named_children() if name != "out"}
        )
        scores = torch.einsum("btgnd,bsgmd->bgnts", q, k)
        mixed = torch.einsum("bgnts,bsgmd->btgnd", torch.softmax(scores, -1), v)
        return self.out(mixed.flatten(2))


class TorchBlock(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attn = torch.nn.LayerNorm(WIDTH), attention

    def forward(self, x):
        return x + self.attn(self.norm(x))


class Attention(nnx.Module):
    def __init__(self, form, weights, biases, reference):
        self.form = form
        for name, weight in form.joined(weights).items():
            layer = nnx.Linear(WIDTH, len(weight), rngs=nnx.Rngs(0))
            layer.kernel[...] = jnp.asarray(weight.T)
            layer.bias[...] = jnp.asarray(form.joined(biases)[name])
            setattr(self, name, layer)
        self.names = (*form.joined(weights),)
        self.out = nnx.Linear(form.groups * form.each * SIZE, WIDTH, rngs=nnx.Rngs(0))
        self.out.kernel[...] = jnp.asarray(reference.out.weight.detach().numpy().T)
        self.out.bias[...] = jnp.asarray(reference.out.bias.detach().numpy())

    def __call__(self, x):
        q, k, v = self.form.heads({name: getattr(self, name)(x) for name in self.names})
        scores = jnp.einsum("btgnd,bsgmd->bgnts", q, k)
        mixed = jnp.einsum("bgnts,bsgmd->btgnd", nnx.softmax(scores), v)
        return self.out(mixed.reshape(*x.shape[:2], -1))


class Block(nnx.Module):
    def __init__(self, attention):
        self.norm, self.attn = nnx.LayerNorm(WIDTH, epsilon=1e-5, rngs=nnx.Rngs(0)), attention

    def __call__(self, x):
        return x + self.attn(self.norm(x))


def drawn(seed):
    """Forms of both sides, weights and biases by part."""
    random = np.random.default_rng(seed)
    hows = [("alone", "woven"), ("woven", "alone"), ("block", "woven"), ("woven", "block")]
    hows.append(("woven", "woven"))
    groups, each = int(random.integers(2, 5)), int(random.integers(1, 4))
    forms = [
        Form(how, groups, each, "".join(random.permutation([*"qkv"])))
        for how in hows[seed % len(hows)]
    ]
    lengths = {"q": groups * each * SIZE, "k": groups * SIZE, "v": groups * SIZE}
    weights = {n: random.standard_normal((s, WIDTH)).astype("f") * 0.3 for n, s in lengths.items()}
    zero = random.random() < 0.5
    biases = {
        n: np.zeros(s, "f") if zero else random.standard_normal(s).astype("f")
        for n, s in lengths.items()
    }
    return forms, weights, biases


def right(random, form, weights, biases):
    return form, weights, biases


def compared(seed, change=right, **options):
    (form, other), weights, biases = drawn(seed)
    torch.manual_seed(seed)
    reference = TorchAttention(form, weights, biases)
    wrong = change(np.random.default_rng(seed), other, weights, biases)
    port = Block(Attention(*wrong, reference))
    x = np.random.default_rng(seed).standard_normal((2, 5, WIDTH)).astype(np.float32)
    return parity.compare(TorchBlock(reference).eval(), port, (x,), check_compiled=False, **options)


def one_head_exchanged(random, form, weights, biases):
    """The queries' and the keys' rows of one head."""
    weights = {name: one.copy() for name, one in weights.items()}
    head = int(random.integers(form.groups))
    q, k = (head * form.each * SIZE, head * SIZE)
    own = weights["q"][q : q + SIZE].copy()
    weights["q"][q : q + SIZE] = weights["k"][k : k + SIZE]
    weights["k"][k : k + SIZE] = own
    return form, weights, biases


def read_in_another_order(random, form, weights, biases):
    """Queries and keys that the code takes for each other."""
    return replace(form, taken="kqv"), weights, biases


SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_port_passes(seed):
    report = compared(seed)
    assert report.verdict == "PASS", (report.notes, report.faults)
    assert report.coverage.matched_parameters == report.coverage.parameters


@pytest.mark.parametrize("seed", SEEDS)
def test_one_head_exchanged_is_one_fault_of_the_attention(seed):
    report = compared(seed, one_head_exchanged)
    assert report.verdict == "FAIL"
    paths = [fault.path for fault in report.faults]
    if drawn(seed)[0][0].groups > 2:  # of two, none tells which is right
        assert paths == ["attn"]
        assert "weights_value" in {line.cause for line in report.weights}
    else:
        assert paths[0].startswith("attn")


@pytest.mark.parametrize("seed", [seed for seed in range(30) if drawn(seed)[0][1].each == 1])
def test_keys_taken_for_queries_are_one_fault_of_the_attention(seed):
    report = compared(seed, read_in_another_order)
    assert report.verdict == "FAIL"
    assert [fault.path for fault in report.faults] == ["attn"]
    assert report.coverage.matched_parameters == report.coverage.parameters


def woven_where_it_should_be_block(random, form, weights, biases):
    """Rows that were woven when they were loaded, and are read one part behind the other."""
    form = drawn(2)[0][0]
    parts = replace(form, how="woven").joined(weights)["qkv"]
    ends = np.cumsum([0, *(len(weights[one]) for one in form.order)])
    own = {one: parts[a:b] for one, a, b in zip(form.order, ends, ends[1:], strict=False)}
    return form, own, biases


def test_rows_woven_for_code_that_does_not_are_one_fault_with_this_cause():
    report = compared(2, woven_where_it_should_be_block)
    assert report.verdict == "FAIL"
    assert [fault.path for fault in report.faults] == ["attn"]
    assert report.faults[0].cause == "weights_layout"


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_of_rows_that_take_turns(seed):
    report = compared(seed, gradients=True)
    assert report.verdict == "PASS", (report.notes, report.faults)
    leaves = {row.leaf for row in report.rows}
    assert any(leaf.startswith("grad(") and "weight" in leaf for leaf in leaves), leaves


def named(name, values):
    path, _, own = name.rpartition(".")
    return Tensor(path, own, values.shape, lambda: values)


def woven(parts, groups):
    held = [one.reshape(groups, -1, *one.shape[1:]) for one in parts]
    return np.concatenate(held, 1).reshape(-1, *held[0].shape[2:])


RNG = np.random.default_rng(0)


def test_rows_that_take_turns_in_each_of_several_stacked_layers():
    layers = [RNG.standard_normal((3, 12, WIDTH)).astype("f") for _ in range(2)]
    theirs = [
        named(f"{i}.{name}.weight", part)
        for i, parts in enumerate(layers)
        for name, part in zip("qkv", parts, strict=True)
    ]
    kernel = np.stack([woven(parts, 3).T for parts in layers])
    found = make_weight_map(theirs, [named("all.qkv.kernel", kernel)])
    assert [str(line.at) for line in found[:3]] == [f"[0, :, {a}:{a + 4} of 12]" for a in (0, 4, 8)]
    assert str(found[3].at) == "[1, :, 0:4 of 12]"
    assert not any(line.finding for line in found)


def test_the_part_may_turn_with_every_row():
    k, v = RNG.standard_normal((2, 12, WIDTH)).astype("f")
    kernel = np.stack([k, v], 1).reshape(-1, WIDTH).T
    found = make_weight_map(
        [named("k.weight", k), named("v.weight", v)], [named("kv.kernel", kernel)]
    )
    assert [str(line.at) for line in found] == ["[:, 0:1 of 2]", "[:, 1:2 of 2]"]


def test_biases_of_zeros_follow_kernels_whose_rows_take_turns():
    q, k = RNG.standard_normal((2, 12, WIDTH)).astype("f")
    zeros = np.zeros(12, "f")
    both = [named("qk.weight", woven([q, k], 3)), named("qk.bias", np.zeros(24, "f"))]
    apart = [
        named("q.weight", q),
        named("q.bias", zeros),
        named("k.weight", k),
        named("k.bias", zeros),
    ]
    found = make_weight_map(apart, both)
    assert [str(line.at) for line in found] == ["[0:4 of 8]"] * 2 + ["[4:8 of 8]"] * 2
    found = make_weight_map(both, apart)
    assert [str(line.of) for line in found] == ["[0:4 of 8]", "[4:8 of 8]"] * 2


def test_a_piece_is_put_where_it_was():
    part, array = TensorPart((None, (2, 4, 6))), np.arange(24).reshape(2, 12)
    assert part.of(array)[0].tolist() == [2, 3, 8, 9]
    changed = part.put(array, -part.of(array))
    assert changed[0].tolist() == [0, 1, -2, -3, 4, 5, 6, 7, -8, -9, 10, 11]
    assert array.min() == 0
