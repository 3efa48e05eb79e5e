"""Modules that only one side has: their tensors count as those of the module around them.

A wrapper level more puts a convolution's kernel one module deeper; a convolution written out as a
function puts it one module higher.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from parity.core.calls import ModuleInfo

SPARE = frozenset({"num_batches_tracked"})
"""Buffers that evaluation does not read and ports leave out."""


@dataclass(frozen=True)
class Folding:
    """Modules that correspond, and those with which the tensors of the others count.

    `partners` maps paths of the reference to the port's. `ref` and `port` map, on each side, the
    path of a module without a partner to that of the module that its tensors count with.
    """

    partners: Mapping[str, str] = field(default_factory=dict)
    ref: Mapping[str, str] = field(default_factory=dict)
    port: Mapping[str, str] = field(default_factory=dict)


def fold(
    ref: Mapping[str, ModuleInfo],
    port: Mapping[str, ModuleInfo],
    names: Mapping[str, str],
    tied: Mapping[str, str] | None = None,
) -> Folding:
    """Find for each module without a partner the module around it that has one.

    `names` are the reference's paths as the port has them. Tensors move only where that makes both
    sides equal by number and size, and only one side has modules of its own there: if both do, a
    module has another name, and nobody said so with `rename`. Of a tensor that modules of the
    reference share, `tied` has each name and the first: the port may hold it once.
    """
    tied = tied or {}
    given = {name for path, name in names.items() if name != path}
    partners = {
        path: name
        for path, name in names.items()
        if path in ref and name in port and (name != path or path not in given)
    }
    taken = set(partners.values())
    ref_rest, port_rest = _by_owner(ref, partners), _by_owner(port, taken)
    held = {tied.get(name, "") for path in partners for name in _names(path, ref[path])}
    ref_owner: dict[str, str] = {}
    port_owner: dict[str, str] = {}
    for path, name in partners.items():
        finer, coarser = port_rest.get(name, []), ref_rest.get(path, [])
        have = sum((_sizes(port[p]) for p in finer), _sizes(port[name]))
        want = sum((_sizes(ref[p]) for p in coarser), _sizes(ref[path]))
        once = _sizes(ref[path]) + _sizes_once(coarser, ref, tied, held)
        if bool(finer) != bool(coarser) and have in (want, once):
            port_owner |= dict.fromkeys(finer, name)
            ref_owner |= dict.fromkeys(coarser, path)
    return Folding(partners, ref_owner, port_owner)


def around(path: str, known: Collection[str]) -> str:
    """The nearest of the `known` paths around a module; the root if there is none."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path


def _by_owner(modules: Mapping[str, ModuleInfo], known: Collection[str]) -> dict[str, list[str]]:
    """Modules with tensors that are not among the `known`, by the nearest of these around them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, info in modules.items():
        if path not in known and _sizes(info):
            found[around(path, known)].append(path)
    return found


def _names(path: str, info: ModuleInfo) -> dict[str, int]:
    """The sizes of a module's tensors by full name."""
    prefix = f"{path}." if path else ""
    return {f"{prefix}{name}": size for name, size in _own(info).items()}


def _sizes_once(
    paths: Sequence[str], ref: Mapping[str, ModuleInfo], tied: Mapping[str, str], held: set[str]
) -> Counter[int]:
    """Number of tensors by size in modules, each tied one once and none that is `held`."""
    names = {name: size for path in paths for name, size in _names(path, ref[path]).items()}
    once = {tied.get(name, name): size for name, size in names.items()}
    return Counter(size for name, size in once.items() if name not in held)


def _own(info: ModuleInfo) -> dict[str, int]:
    own = {**info.parameters, **info.buffers}
    return {name: size for name, size in own.items() if name not in SPARE}


def _sizes(info: ModuleInfo) -> Counter[int]:
    """Number of tensors by size in a module."""
    return Counter(_own(info).values())
