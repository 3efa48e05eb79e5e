import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from parity.core.exceptions import InputError
from parity.lines import jax_operations, operations, torch_operations
from parity.lines.source import users

X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


def values(program, name):
    """Of every operation of this name the first output."""
    return [program.values[x.outputs[0]].array for x in program.operations if x.name == name]


def of_torch(function, *args):
    program, outputs = torch_operations.run(function, [], args)
    return program, [program.values[number].array for number in outputs]


def of_jax(function, *args):
    program, outputs = jax_operations.run(function, args)
    return program, [program.values[number].array for number in outputs]


def test_writing_in_place_makes_a_new_value_also_of_what_is_seen_through_a_view():
    def function(x):
        y = x * 2
        first = y[0]
        y.add_(1)
        first.zero_()
        return y, first + 0

    program, (whole, first) = of_torch(function, X)
    wanted = X * 2 + 1
    wanted[0] = 0
    np.testing.assert_allclose(whole, wanted, rtol=1e-6)
    assert not first.any()
    np.testing.assert_allclose(values(program, "mul")[0], X * 2, rtol=1e-6)
    np.testing.assert_allclose(values(program, "add")[0], X * 2 + 1, rtol=1e-6)


def test_fused_attention_is_taken_apart():
    q, k, v = (np.random.default_rng(i).standard_normal((2, 3, 5, 4)) for i in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    program, (output,) = of_torch(attend, *(x.astype(np.float32) for x in (q, k, v)))
    names = {operation.name for operation in program.operations}
    assert {"bmm", "mul"} <= names
    assert not any("scaled_dot_product" in name for name in names)
    np.testing.assert_allclose(output, attend(*map(torch.from_numpy, (q, k, v))), atol=1e-6)


def test_the_rounding_of_a_value_is_its_distance_from_float64():
    x = (1000 + 1e-3 * X).astype(np.float32)
    program, _ = of_torch(lambda x: x - x.mean(), x)
    wide = torch.from_numpy(x).double()
    narrow = torch.from_numpy(x) - torch.from_numpy(x).mean()
    distance = float(((wide - wide.mean()) - narrow).square().mean().sqrt())
    (difference,) = [v for v in program.values if v.made is not None and v.array.shape == x.shape]
    assert difference.rounding == pytest.approx(distance, rel=1e-3)
    assert difference.rounding > 1e-3 * abs(difference.array).max()


def test_the_program_is_that_of_its_own_type():
    program, (output,) = of_torch(lambda x: x.to(torch.bfloat16) * 3, X)
    exact = X.astype(np.float64) * 3
    assert abs(output - exact).max() < 1e-6
    assert program.values[-1].rounding > 1e-4


def looping(x):
    def body(c, row):
        return c + row, c * row

    total, rows = jax.lax.scan(body, jnp.zeros(x.shape[1]), x, reverse=True)
    grown = jax.lax.while_loop(lambda c: c.sum() < 50, lambda c: c * 2 + 1, jnp.abs(total))
    chosen = jax.lax.cond(grown[0] > 0, jnp.sin, jnp.cos, grown)
    return rows, jax.checkpoint(jnp.tanh)(chosen), jax.nn.relu(total), jax.jit(jnp.exp)(total)


def test_loops_branches_and_calls_are_entered():
    program, outputs = of_jax(looping, X)
    for found, wanted in zip(outputs, looping(X), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    names = [operation.name for operation in program.operations]
    assert names.count("sin") == 1
    assert "cos" not in names
    assert names.count("slice") >= X.shape[0]
    assert not {"scan", "while", "cond", "jit", "custom_jvp_call", "remat"} & set(names)


@jax.jit
def squared(x):
    return x * x


def twice(x):
    y = squared(x)
    return squared(y + 1)


def test_lines_inside_a_compiled_function_and_of_its_call_are_known():
    program, _ = of_jax(twice, X)
    found = [users(x.frames)[0] for x in program.operations if x.name == "mul"]
    assert {frame.function.rpartition(".")[2] for frame in found} == {"squared"}


def test_a_library_s_lines_are_the_user_s_above_them():
    program, _ = of_jax(lambda x: jax.nn.gelu(x), X)
    frame, called = users(program.operations[-1].frames)
    assert frame.file == __file__
    assert called == "gelu"


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4)(x)


class Plain:
    def __init__(self):
        self.kernel = jnp.ones((5, 4))

    def __call__(self, x):
        return x @ self.kernel


def models():
    module = Linen()
    variables = module.init(jax.random.key(0), jnp.asarray(X))
    dense = nnx.Linear(5, 4, rngs=nnx.Rngs(0))
    return {"linen": lambda x: module.apply(variables, x), "object": Plain(), "nnx": dense}


@pytest.mark.parametrize("kind", ["linen", "object", "nnx"])
def test_any_function_of_jax_is_a_port(kind):
    function = models()[kind]
    program, (output,) = of_jax(function, X)
    np.testing.assert_allclose(output, function(jnp.asarray(X)), rtol=1e-6)
    assert "dot_general" in {operation.name for operation in program.operations}


def test_a_program_takes_no_more_memory_than_it_may(monkeypatch):
    monkeypatch.setattr(operations, "LARGEST", 10 * X.nbytes)
    of_jax(lambda x: x + 1, X)
    with pytest.raises(InputError, match="smaller inputs"):
        of_jax(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: y * 2 + 1, x), X)
