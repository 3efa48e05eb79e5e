"""Small modules of both frameworks, made of functions and of layers."""

from collections.abc import Callable
from typing import Any

import torch
from flax import nnx

from tests.weights import copy_weights


def torch_of(forward: Callable[..., Any], **parts: Any) -> torch.nn.Module:
    """Make a module with these attributes whose `forward` is the function."""
    module = type("Net", (torch.nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def nnx_of(call: Callable[..., Any], **parts: Any) -> nnx.Module:
    """Make a module with these attributes whose `__call__` is the function."""
    module = type("Net", (nnx.Module,), {"__call__": call})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def ported(layer: torch.nn.Module, **options: Any) -> Any:
    """Make the layer of Flax with the weights of this one; options are those of Flax."""
    options = {"rngs": nnx.Rngs(0), **options}
    match layer:
        case torch.nn.Linear():
            bias = layer.bias is not None
            port: nnx.Module = nnx.Linear(
                layer.in_features, layer.out_features, use_bias=bias, **options
            )
        case torch.nn.Embedding():
            port = nnx.Embed(layer.num_embeddings, layer.embedding_dim, **options)
        case torch.nn.LayerNorm():
            options = {"epsilon": layer.eps, "use_fast_variance": False, **options}
            port = nnx.LayerNorm(layer.normalized_shape[0], **options)
        case torch.nn.GroupNorm():
            options = {"epsilon": layer.eps, "use_fast_variance": False, **options}
            port = nnx.GroupNorm(layer.num_channels, num_groups=layer.num_groups, **options)
        case _:
            assert isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)), layer
            padding = [(n, n) for n in layer.padding]
            options = {"padding": padding, "strides": layer.stride, **options}
            port = nnx.Conv(layer.in_channels, layer.out_channels, layer.kernel_size, **options)
    return copy_weights(layer, port)
