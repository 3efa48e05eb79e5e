"""Small modules of PyTorch, and the layers of Flax that stand for its own."""

from collections.abc import Callable
from typing import Any

import torch
from flax import nnx

from tests.ports import copy_weights, nnx_of


def torch_of(forward: Callable[..., Any], **parts: Any) -> torch.nn.Module:
    """Make a module with these attributes whose `forward` is the function."""
    module = type("Net", (torch.nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


class TorchBlock(torch.nn.Module):
    """What makes capture hard: an in-place module, a write in place, nested and empty outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, 8)
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, scale: float = 1.0, cache: Any = None) -> Any:
        h = self.conv(self.act(self.norm(x))) * scale
        h += x  # overwrites what a careless record would still point to
        return h, {"mean": h.mean((2, 3)), "none": cache}


def randomise(reference: torch.nn.Module) -> Any:
    """Return the module with vectors that no swapped or lost one can stand for, in evaluation."""
    with torch.no_grad():
        for module in reference.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim == 1:
                    parameter.normal_().mul_(0.3).add_(float(name == "weight"))
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.ndim == 1:
                    buffer.normal_().mul_(0.3).add_(float(name == "running_var")).abs_()
    return reference.eval()


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


def port_of(reference: torch.nn.Module, call: Callable[..., Any], **parts: Any) -> Any:
    """Make a port with this `__call__`, the layers of the reference, and these parts besides."""
    layers = {
        name: ported(layer) for name, layer in reference.named_children() if name not in parts
    }
    return nnx_of(call, **layers, **parts)
