"""Run JAX on a CPU as hardware with coarser products would.

Such hardware rounds the operands of a convolution or matrix product and sums in float32. Whatever
multiplies arrays in JAX binds one of two primitives, at once or while a program is traced: their
`bind` is replaced for the run. So is that of the primitive by which code chooses between platforms
(`lax.platform_dependent`): a port that multiplies otherwise on a CPU than on an accelerator is run
as it would be there.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from parity.core.undo import undone
from parity.options.emulate import check_emulate

PLATFORMS = {"tpu-default": "tpu", "tf32": "cuda", "bf16": "tpu"}
"""Whose branch is run where code has one for each platform."""

Round = Literal["", "bfloat16", "bfloat16 x3", "TF32"]

MANTISSA = {"bfloat16": 7, "bfloat16 x3": 7, "TF32": 10}
"""Bits of mantissa that are stored."""


@contextmanager
def emulated(mode: str) -> Iterator[None]:
    """In the block, this thread's products are those of such hardware.

    Programs compiled outside of the block are not used in it, nor the other way round.

    Raises:
        InputError: no such mode.
    """
    from jax.experimental.xla_metadata import set_xla_metadata
    from jax.extend.core import primitives

    check_emulate(mode)
    products = (primitives.dot_general_p, primitives.conv_general_dilated_p)
    binds: dict[Any, Callable[..., Any]] = {}

    def undo() -> None:
        for primitive in binds:
            vars(primitive).pop("bind", None)

    with undone(undo):
        platform = _platform_primitive()
        binds |= {primitive: _bind(primitive.bind, mode) for primitive in products}
        binds[platform] = _bind_platform(platform.bind, PLATFORMS[mode])
        for primitive, bind in binds.items():
            setattr(primitive, "bind", bind)  # noqa: B010
        # Metadata is part of the key of every cache of traced and compiled programs.
        with set_xla_metadata(parity_emulate=mode):
            yield


def asked(mode: str, precision: Any) -> Round:
    """The rounding of the float32 operands of a product that asks for `precision`."""
    from jax import lax

    if mode == "bf16":
        return "bfloat16"
    if isinstance(precision, lax.DotAlgorithm) or (
        isinstance(precision, lax.DotAlgorithmPreset)
        and precision is not lax.DotAlgorithmPreset.DEFAULT
    ):
        return ""
    # a pair asks for each operand; the more exact one decides
    pair = precision if isinstance(precision, tuple) else (lax.Precision.DEFAULT,)
    highest: int = max(one.value for one in pair)
    steps: tuple[Round, Round, Round] = (
        ("bfloat16", "bfloat16 x3", "") if mode == "tpu-default" else ("TF32", "TF32", "")
    )
    return steps[highest]


def _bind(bind: Callable[..., Any], mode: str) -> Callable[..., Any]:
    import jax.numpy as jnp
    from jax import lax

    owner = threading.get_ident()

    def call(lhs: Any, rhs: Any, **params: Any) -> Any:
        if threading.get_ident() != owner or not (_wide(lhs) or _wide(rhs)):
            return bind(lhs, rhs, **params)
        how = asked(mode, params["precision"])
        if not how:
            return bind(lhs, rhs, **params)
        bits = MANTISSA[how]
        # on an accelerator they must not be rounded once more
        params["precision"] = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
        first = bind(_rounded(lhs, bits), _rounded(rhs, bits), **params)
        if how != "bfloat16 x3":
            return first
        small = bind(_rounded(lhs, bits), _rest(rhs, bits), **params)
        small += bind(_rest(lhs, bits), _rounded(rhs, bits), **params)
        # what is infinite has no rest
        return first + jnp.where(jnp.isfinite(small), small, 0)

    return call


def _platform_primitive() -> Any:
    """The primitive that says on which platform a program runs; JAX has no public name for it."""
    import jax
    from jax import lax

    def choose() -> Any:
        return lax.platform_dependent(cpu=lambda: 0, default=lambda: 1)

    found = [equation.primitive for equation in jax.make_jaxpr(choose)().eqns]
    (primitive,) = (one for one in found if one.name == "platform_index")
    return primitive


def _bind_platform(bind: Callable[..., Any], platform: str) -> Callable[..., Any]:
    import numpy as np

    owner = threading.get_ident()

    def call(**params: Any) -> Any:
        # tuples of names, and None for the branch of all the others
        for branch, names in enumerate(params["platforms"]):
            if threading.get_ident() == owner and (names is None or platform in names):
                return np.int32(branch)
        return bind(**params)

    return call


def _wide(x: Any) -> bool:
    return x.dtype in ("float32", "complex64")


def _rounded(x: Any, bits: int) -> Any:
    """To nearest, ties to even."""
    from jax import lax

    if x.dtype == "complex64":
        return lax.complex(_rounded(lax.real(x), bits), _rounded(lax.imag(x), bits))
    # not a cast there and back: the compiler may take that for nothing
    return lax.reduce_precision(x, 8, bits) if _wide(x) else x


def _rest(x: Any, bits: int) -> Any:
    """The part that rounding took off, rounded."""
    return _rounded(x - _rounded(x, bits), bits)
