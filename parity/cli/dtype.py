"""`parity compare --dtype`: both models and their arguments in another floating-point type."""

from collections.abc import Mapping
from typing import Any

from parity.core.exceptions import InputError

TYPES = ("float64", "float32", "bfloat16", "float16")


def cast(made: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the arguments of `parity.compare` with all that is floating in `dtype`.

    Both models are changed in place. Call it with JAX's 64-bit types enabled for float64.

    Raises:
        InputError: a module of the port computes in a type of its own, whatever it is given.
    """
    import jax.numpy as jnp
    import torch
    from flax import nnx

    from parity.core.tree import mapped

    def to_torch(array: Any) -> Any:
        tensor = torch.as_tensor(array)
        return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else array

    def to_jax(array: Any) -> Any:
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return jnp.asarray(array, dtype) if floating else array

    port = made["nnx_module"]
    _check_types(port, dtype)
    made["torch_module"].to(getattr(torch, dtype))
    for _, variable in nnx.iter_graph(port):
        if isinstance(variable, nnx.Variable):
            value = variable.get_value()
            if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating):
                variable.set_value(to_jax(value))
    cast_made = dict(made)
    for side, change in (("torch", to_torch), ("nnx", to_jax)):
        for name in (f"{side}_args", f"{side}_kwargs"):
            if made.get(name) is not None:
                cast_made[name] = mapped(change, made[name])
    return cast_made


def _check_types(port: Any, dtype: str) -> None:
    """Refuse a port with a module that computes in another type whatever it is given."""
    from flax import nnx

    for path, module in nnx.iter_modules(port):
        own = _dtype(module)
        if own is not None and own != dtype:
            where = ".".join(map(str, path)) or "<root>"
            raise InputError(
                f"--dtype {dtype}: `{where}` of the port computes in {own} whatever it "
                "is given (its `dtype`); have the function make it in that type"
            )


def _dtype(module: Any) -> Any:
    """Return the type that a module of Flax computes in, `None` where its arguments decide.

    That of a module of Linen is looked for in what NNX's bridge has wrapped.
    """
    import jax.numpy as jnp

    own = getattr(getattr(module, "to_nnx__module", module), "dtype", None)
    try:
        return None if own is None else jnp.dtype(own)
    except TypeError:  # a method or a text of the user's by that name
        return None
