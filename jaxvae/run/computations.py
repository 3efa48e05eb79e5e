"""A module as a computation of its own in a program for CPUs, which has a fraction of the memory.

Not in diffusers. XLA's CPU backend puts the operations of a program in order without regard to
memory, and removes `lax.optimization_barrier` before it does: what a decoder makes of the latent
for every spatial norm, and the arrays that every loop will fill, are all made first and held. What
a computation makes that is not inlined is made when it runs.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxvae.layers.scopes import entered, path


def call_apart(function: Callable[..., Any], module: nnx.Module, *args: Any) -> Any:
    """Return `function(module, *args)`, in a CPU's program as a computation that is not inlined.

    Operations have the paths of their modules there, as if it were inlined. Accelerators' programs
    are what they would be without, but that the path stands twice in their names. It is inlined
    where the module or an argument holds what is no array of JAX, such as a function, and inside of
    `jax.shard_map`: XLA knows the number of a device in what is inlined alone.
    """
    arrays = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((module, args)))
    if not arrays or jax.sharding.get_abstract_mesh().manual_axes:
        return function(module, *args)
    with entered(module):  # what runs is a copy, which has no name
        output = _computation(module, *args, function=function, where=path())
    first, *rest = jax.tree.leaves(output)
    return jax.tree.unflatten(jax.tree.structure(output), [_not_inlined.bind(first), *rest])


@nnx.jit(graph=False, static_argnames=("function", "where"))
def _computation(module: Any, *args: Any, function: Callable[..., Any], where: str) -> Any:
    # A module is an argument, not a constant: its parameters have gradients too, and what a random
    # stream counts inside comes out.
    with jax.named_scope(where):
        return function(module, *args)


_not_inlined = Primitive("jaxvae_not_inlined")
"""Its operand as it is, of which the lowering for a CPU says that the call behind it is kept."""

_not_inlined.def_abstract_eval(lambda x: x)
_not_inlined.def_impl(lambda x: x)
ad.deflinear2(_not_inlined, lambda cotangent, _: (cotangent,))
batching.defvectorized(_not_inlined)


def _mark(context: mlir.LoweringRuleContext, x: Any) -> list[Any]:
    call = x.owner
    if not isinstance(call, mlir.ir.Block) and call.name == "func.call":
        # what XLA's inliner asks for, as JAX's own `compute_on` does
        kept: dict[str, mlir.ir.Attribute] = {"inlineable": mlir.ir.StringAttr.get("false")}
        call.attributes["mhlo.frontend_attributes"] = mlir.ir.DictAttr.get(kept)
    return [x]


mlir.register_lowering(_not_inlined, lambda context, x: [x])
# a cached lowering would be a function, whose argument has no call behind it
mlir.register_lowering(_not_inlined, _mark, platform="cpu", cacheable=False)
