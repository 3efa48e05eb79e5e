"""The real precision of a product in float32 on this machine, measured on one product."""

from typing import Any

import numpy as np

SIZE = 128
"""Large enough for the units of an accelerator that round."""

FINE = 1 + 2.0**-9 + 2.0**-13 + 2.0**-22
"""Each step below loses one more of its terms."""

NAMES = {
    FINE: "float32",
    1 + 2.0**-9 + 2.0**-13: "3 bfloat16 passes",
    1 + 2.0**-9: "TF32",
    1.0: "bfloat16 passes",
}


def of_jax() -> str:
    """Of `jax.numpy.matmul` on the default device, at the default precision."""
    import jax.numpy as jnp

    return _name(np.asarray(jnp.matmul(*map(jnp.asarray, _operands()))))


def of_torch() -> str:
    """Of `torch.matmul` on the CPU."""
    import torch

    with torch.no_grad():
        return _name(torch.matmul(*map(torch.from_numpy, _operands())).float().numpy())


def _operands() -> tuple[Any, Any]:
    return np.full((SIZE, SIZE), FINE, np.float32), np.eye(SIZE, dtype=np.float32)


def _name(product: Any) -> str:
    found = sorted({float(value) for value in np.unique(product)})
    return " and ".join(NAMES.get(value, f"unknown ({value!r})") for value in found)
