"""PyTorch tensors into the parameters of a model, and where each of them belongs.

A mapping goes by the type of the module that owns a parameter, and it is a bijection: every tensor
is used once and every parameter set once, or loading fails and names what does not fit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxvae.io.diffusers_folder import WeightsError
from jaxvae.io.messages import shown
from jaxvae.layers.convolution import Conv2d, Conv3d, Linear
from jaxvae.layers.norms import GroupNorm, RMSNorm

_COMPILED_PREFIX = "_orig_mod."  # what torch.compile puts before every name
_SHOWN = 8

# What the parts of an attention were called once; files of that time are still about.
_OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}

_CHANNELS_LAST = "channels last"
# Per type: our name, torch's name, and the torch axes in our order (None: as it is).
_PARAMETERS: dict[type, tuple[tuple[str, str, tuple[int, ...] | str | None], ...]] = {
    Conv3d: (("kernel", "weight", (2, 3, 4, 1, 0)), ("bias", "bias", None)),
    Conv2d: (("kernel", "weight", (2, 3, 1, 0)), ("bias", "bias", None)),
    Linear: (("kernel", "weight", (1, 0)), ("bias", "bias", None)),
    GroupNorm: (("scale", "weight", None), ("bias", "bias", None)),
    RMSNorm: (("gamma", "gamma", _CHANNELS_LAST),),
}


def load_torch_state(model: nnx.Module, tensors: Mapping[str, Any]) -> None:
    """Set every parameter of `model` (or of one of its blocks) from PyTorch tensors.

    The model is left as it was unless everything fits.
    """
    slots = parameter_slots(model)
    names: dict[str, str] = {}
    unexpected = []
    for given in tensors:
        name = given.removeprefix(_COMPILED_PREFIX)
        if name not in slots:
            name = _renamed(name)
        if name in slots and name not in names:
            names[name] = given
        else:
            unexpected.append(given)
    misshapen: list[str] = []
    unusable: list[str] = []
    too_large: dict[str, Any] = {}
    values = []
    for name, given in names.items():
        param, axes = slots[name]
        array = np.asarray(tensors[given])
        shape = torch_shape(param.shape, axes)
        if array.shape != shape:
            misshapen.append(f"{name} (expected {shape}, found {array.shape})")
            continue
        if not jnp.issubdtype(array.dtype, jnp.floating):
            unusable.append(f"{name} ({array.dtype})")
            continue
        ordered = array if axes is None else array.transpose(axes)
        # A copy, in any case: the caller may change its array later, and jax aliases what it can.
        try:
            with np.errstate(over="raise"):
                host = np.array(ordered, param.dtype, order="C")
        except FloatingPointError:
            too_large[name] = param.dtype
            continue
        # Done before the next: copies made in the background would each keep their source.
        value = jax.device_put(host).block_until_ready()
        values.append((param, value))
    refuse_misfits([name for name in slots if name not in names], unexpected, misshapen)
    refuse_too_large(too_large)
    if unusable:
        raise WeightsError(
            f"expected floating-point numbers, found {_listed('of other values', unusable)}; save"
            " the checkpoint again in floating point"
        )
    for param, value in values:
        param.set_value(value)


def refuse_too_large(dtypes: Mapping[str, Any]) -> None:
    """Raise WeightsError for parameters with values that their dtypes do not hold."""
    if dtypes:
        kinds = " and ".join({str(dtype): None for dtype in dtypes.values()})
        raise WeightsError(
            f"{_listed(f'tensors with values too large for {kinds}', list(dtypes))}; load them as"
            " bfloat16 or float32, which hold more"
        )


def refuse_nonfinite(model: nnx.Module, source: str | Path) -> None:
    """Raise WeightsError if a parameter, read from `source`, has a NaN or an infinity.

    Loading keeps any bits. But whatever such a model computes is of no use.
    """
    slots = parameter_slots(model).items()
    bad = [name for name, (param, _) in slots if not jnp.isfinite(param[...]).all()]
    if bad:
        raise WeightsError(
            f"{source}: {_listed('tensors with values that are not finite', bad)}; use the"
            " checkpoint of an earlier step"
        )


def parameter_slots(model: nnx.Module) -> dict[str, tuple[Any, tuple[int, ...] | None]]:
    """Return torch name -> (parameter, torch axes in our order or None) for every parameter."""
    slots = {}
    for path, module in nnx.iter_modules(model):
        known = next(
            (_PARAMETERS[kind] for kind in type(module).__mro__ if kind in _PARAMETERS), ()
        )
        for name, torch_name, axes in known:
            param = getattr(module, name)
            order = (*range(1, param.ndim), 0) if isinstance(axes, str) else axes
            slots[".".join(map(str, (*path, torch_name)))] = (param, order)
    count = len(jax.tree.leaves(nnx.state(model, nnx.Param)))
    if len(slots) != count:
        raise TypeError(f"{count} parameters, but only {len(slots)} in modules with a known layout")
    return slots


def refuse_misfits(missing: list[str], unexpected: list[str], misshapen: list[str]) -> None:
    """Raise WeightsError if any tensor is named that does not fit."""
    problems = [
        _listed(what, found)
        for what, found in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
        )
        if found
    ]
    if problems:
        raise WeightsError(
            f"the tensors do not fit the model: {'; '.join(problems)}. Check that the config"
            " belongs to these weights"
        )


def torch_shape(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape in PyTorch's order of axes."""
    if axes is None:
        return shape
    return tuple(shape[axes.index(i)] for i in range(len(axes)))


def _renamed(name: str) -> str:
    """Return today's name of a tensor.

    Source: diffusers 0.42.1, `ModelMixin._fix_state_dict_keys_on_load`.
    """
    *path, owner, parameter = ["", *name.split(".")]
    return ".".join([*path, _OLD_NAMES.get(owner, owner), parameter]).removeprefix(".")


def _listed(what: str, names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(map(shown, names[:_SHOWN]))}{more}"
