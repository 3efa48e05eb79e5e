"""What the ports share: random weights, arrays of tensors, and loading by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch


def randomise(reference: Any, seed: int = 0) -> Any:
    """Return the module in evaluation with random weights of which no two are alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in reference.modules():
            for name, tensor in module.named_parameters(recurse=False):
                if tensor.ndim == 1:
                    draw = torch.randn(tensor.shape, generator=generator) * 0.2
                    tensor.copy_(draw + float(name in ("weight", "gamma")))
                else:
                    fan = max(tensor[0].numel(), 4)
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * fan**-0.5)
            for name, tensor in module.named_buffers(recurse=False):
                if name.startswith("running_"):
                    draw = torch.randn(tensor.shape, generator=generator) * 0.2
                    tensor.copy_((draw + float(name == "running_var")).abs())
    return reference.eval()


def of(tensor: torch.Tensor) -> Any:
    """The tensor as an array of JAX."""
    return jnp.asarray(np.array(tensor.detach().numpy()))


def give(layer: Any, module: Any) -> None:
    """Copy the weights of a module of PyTorch into the layer of Flax; kernels are reshaped."""
    if hasattr(layer, "embedding"):
        layer.embedding[...] = of(module.weight)
        return
    if hasattr(layer, "scale"):
        layer.scale[...] = of(module.weight)
    else:
        kernel = of(module.weight)
        kernel = kernel.transpose(*range(2, kernel.ndim), 1, 0)
        layer.kernel[...] = kernel.reshape(layer.kernel.shape)
    if getattr(module, "bias", None) is not None:
        layer.bias[...] = of(module.bias).reshape(layer.bias.shape)
    if getattr(module, "running_mean", None) is not None:
        layer.mean[...] = of(module.running_mean)
        layer.var[...] = of(module.running_var)


def words(*shape: int, seed: int = 0, vocabulary: int = 50) -> Any:
    """Whole numbers from 3 on."""
    return np.random.default_rng(seed).integers(3, vocabulary, shape)


def noise(*shape: int, seed: int = 0) -> Any:
    """N(0, 1) in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
