"""Names of the hardware whose products can be emulated."""

from parity.core.exceptions import InputError

MEANINGS = {
    "tpu-default": "bfloat16 operands where a product asks for no precision or for the default, "
    "three bfloat16 products for HIGH, float32 for HIGHEST",
    "tf32": "operands with 10 bits of mantissa, as on recent GPUs, unless a product asks for "
    "HIGHEST",
    "bf16": "bfloat16 operands in every product, whatever it asks for",
}
"""Modes of emulation. A product that asks for a `DotAlgorithm` gets it, except in `bf16`."""


def check_emulate(name: str | None) -> None:
    """Refuse a name that is none of `MEANINGS`."""
    if name is not None and name not in MEANINGS:
        raise InputError(f"emulate {name!r}: expected one of {', '.join(MEANINGS)}")
