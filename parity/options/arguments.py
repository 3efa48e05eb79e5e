"""Refusals of arguments before anything runs, each with one line that says what to do."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import jax
import torch
from flax import nnx

from parity.capture import nnx as capture_nnx
from parity.capture import torch as capture_torch
from parity.core.exceptions import InputError, shown
from parity.core.globs import check_used
from parity.core.tensors import Fused, Stacked
from parity.options.emulate import check_emulate
from parity.options.options import Options

LARGEST_SEED = 2**32 - 1
"""Largest number that every stream of random numbers can start from."""


def check_arguments(
    torch_module: object,
    nnx_module: object,
    torch_args: object,
    nnx_args: object,
    fused: object,
) -> None:
    """Two models in this order, tuples of arguments, rules for weights."""
    kinds = f"{type(torch_module).__name__} and {type(nnx_module).__name__}"
    if not isinstance(torch_module, torch.nn.Module) or not isinstance(nnx_module, nnx.Module):
        wrap = "; wrap a function: parity.Functional(function, params)"
        hint = wrap if callable(nnx_module) and not isinstance(nnx_module, torch.nn.Module) else ""
        raise InputError(
            f"expected a torch.nn.Module and an nnx.Module, in this order, not {kinds}{hint}"
        )
    for name, value in (("torch_args", torch_args), ("nnx_args", nnx_args)):
        optional = name == "nnx_args" and value is None
        if not optional and not isinstance(value, (tuple, list)):
            kind = type(value).__name__
            raise InputError(f"{name}: expected a tuple of arguments, found a bare {kind}")
    given = torch_args if isinstance(torch_args, (tuple, list)) else ()
    if any(isinstance(one, jax.Array) for one in given):
        raise InputError("torch_args: found an array of JAX; give NumPy's, as np.asarray(x)")
    if not isinstance(fused, Sequence):
        raise InputError(f"fused: expected a tuple of rules, found a bare {type(fused).__name__}")
    for rule in fused:
        if not isinstance(rule, (Fused, Stacked)):
            kind = type(rule).__name__
            raise InputError(f"fused: expected parity.Fused or parity.Stacked, found a {kind}")


def check_sequences(**options: object) -> None:
    """Options that hold several names or globs."""
    for name, value in options.items():
        if isinstance(value, str):
            found = shown(value)
            raise InputError(
                f"{name}: expected a sequence, found the string {found}; write ({found},)"
            )
        if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            raise InputError(f"{name}: expected a sequence of strings, found {shown(value)}")


def check_mappings(**options: object) -> None:
    """Options that map names or globs to something."""
    for name, value in options.items():
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name}: expected a mapping by name, found {shown(value)}")


def check_method(option: str, module: object, method: object) -> None:
    """Name of a method that the module has, or a callable."""
    if not isinstance(method, str) and not callable(method):
        raise InputError(f"{option} {shown(method)}: expected a name or a callable")
    if isinstance(method, str) and not callable(getattr(module, method, None)):
        raise InputError(f"{option}: {type(module).__name__} has no method {method!r}")


def check_run(seed: object, depth: object, emulate: str | None, seconds: object) -> None:
    """Seed of random numbers, levels that are looked into, hardware that is emulated, and how long
    causes are looked for.
    """
    if seconds is not None and not (isinstance(seconds, (int, float)) and seconds >= 0):
        text = f"diagnosis_seconds {shown(seconds)}"
        raise InputError(f"{text}: expected a number of seconds, from 0")
    if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed {shown(seed)}: expected an integer from 0 to {LARGEST_SEED}")
    if depth is not None and (type(depth) is not int or depth < 0):
        raise InputError(f"depth {shown(depth)}: expected how many levels, from 0")
    check_emulate(emulate)


def check_globs(torch_module: torch.nn.Module, nnx_module: nnx.Module, options: Options) -> Options:
    """Refuse what names nothing: a mistyped name would be left out without a word.

    Returns the options, with the globs that only taps can match.
    """
    tensors = [tensor.full_name for tensor in capture_torch.named_tensors(torch_module)]
    ref_paths = [path for path, _ in torch_module.named_modules()]
    leaves = [tensor.full_name for tensor in capture_nnx.named_tensors(nnx_module)]
    port_names = [*capture_nnx.submodules(nnx_module), *leaves]
    what = "module or tensor"
    plain = [glob for glob in options.declared or () if glob not in options.leaves]
    of_ref, modules = [*ref_paths, *tensors], "module of the reference"
    pending = {
        "rename": _pending("rename", options.rename, of_ref, f"{what} of the reference"),
        "layout": _pending("layout", options.layout, ref_paths, modules, _of_path),
        "ignore": _pending("ignore", plain, [*of_ref, *port_names], what),
    }
    names = [glob for rule in options.fused for glob in rule.globs]
    check_used("fused", names, tensors, "tensor of the reference")
    check_choice(ref_paths, options)
    return replace(options, pending=pending)


def _pending(
    option: str,
    globs: Iterable[str] | None,
    names: Sequence[str],
    what: str,
    match: Callable[[str, str], bool] = fnmatchcase,
) -> Callable[[Sequence[str]], None]:
    """A check that refuses the globs that match neither a name nor one of the taps it is given."""

    def check(taps: Sequence[str]) -> None:
        text = f"{what}, nor a tap" if taps else what
        check_used(option, globs or (), [*names, *taps], text, match)

    return check


def check_choice(paths: Collection[str], options: Options) -> None:
    """Refuse globs of `only` that match no module of the reference, and `emulate` beside it."""
    check_used("only", options.only, paths, "module of the reference")
    if options.only and options.emulate:
        raise InputError("emulate: it is measured on all calls, and only= leaves some out")
    if options.only and options.gradients:
        raise InputError("gradients: they are of the whole, and only= is not; use depth=")


def _of_path(path: str, glob: str) -> bool:
    """Match a glob of `path` or `path#leaf` with this path; leaves are not known yet."""
    return fnmatchcase(path, glob.partition("#")[0])
